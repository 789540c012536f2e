"""Reporting tables: staging merged into one row an entity, and the view that unites both."""
