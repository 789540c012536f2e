"""The lake: Delta tables on a path, queried with DuckDB."""
