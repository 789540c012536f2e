"""Rollout: managed streams with their releases, templates, snapshots and updates."""
