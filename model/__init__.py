"""The nouns of Refeed; standard library only."""
