"""Request and plan: what a backfill is asked to do, what it would do, and what its driver is told."""
