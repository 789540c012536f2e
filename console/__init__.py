"""The console: pages for a browser, as a client of the HTTP API."""
