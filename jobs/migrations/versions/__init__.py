"""Revisions, oldest first; a revision that was released never changes."""
