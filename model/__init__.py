"""Types and settings that every room uses; imports only Python's standard library."""
