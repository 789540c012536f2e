"""Reporting tables: a merge writes one row for each entity, and a view adds the rows not merged yet."""
