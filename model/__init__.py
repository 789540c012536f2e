"""The nouns of Refeed; imports only Python's standard library."""
