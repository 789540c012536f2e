"""Turns SQL text into a validated query, or into the list of all violations."""
