"""Reporting tables: a merge writes one row for each entity, and a view adds rows that are not merged yet."""
