"""The terminal: argv to calls."""
