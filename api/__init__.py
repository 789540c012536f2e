"""The HTTP API: turns requests into calls, and errors into problems."""
