"""Runs the stream that writes every message of every topic, unchanged, to the archive."""
