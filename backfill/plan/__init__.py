"""Request and plan: what a backfill is to do, what it would do, and the specification of its driver."""
