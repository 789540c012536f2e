"""Makes pages for a browser from answers of the HTTP API."""
