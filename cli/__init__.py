"""The terminal: turns command lines into calls."""
