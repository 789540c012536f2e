"""Calls the HTTP API for the terminal and the console, and raises its problems as errors."""
