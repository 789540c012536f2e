"""The tables: one port, and one implementation for each warehouse."""
