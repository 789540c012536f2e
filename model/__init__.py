"""Has the types and settings that every room uses, and imports only Python's standard library."""
