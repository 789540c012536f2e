"""Statements that BigQuery runs, and tables read in parallel."""
