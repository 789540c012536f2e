"""The gate: SQL text to a validated query, or to every violation."""
