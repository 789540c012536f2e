"""Changes of the store's schema, one module each, run when a store is opened."""
