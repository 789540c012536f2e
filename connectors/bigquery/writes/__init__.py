"""Rows on their way into tables: appended unseen, noted, committed once."""
