"""Merges staging rows into reporting tables, and shows rows that are not merged yet in views."""
