"""The backup: the one stream that writes every message of every topic, untouched, to the archive."""
