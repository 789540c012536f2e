"""Steer: create, watch, approve, pause, retry, verify and revert backfills."""
