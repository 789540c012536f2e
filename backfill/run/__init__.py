"""Run: a backfill's driver and its tasks, which select once, publish slice by slice, and keep checkpoints."""
