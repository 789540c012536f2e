"""Writes the pages of docs/reference from the code's own declarations: ``make reference``."""
