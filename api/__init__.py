"""Serves the HTTP API, and returns errors as problem documents."""
