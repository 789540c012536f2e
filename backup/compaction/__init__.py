"""Compactions of the archive and of tables of rows, as jobs."""
