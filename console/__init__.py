"""The console: pages for a browser, made from answers of the HTTP API."""
