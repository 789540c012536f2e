"""Rollout: managed streams, and the releases, templates, snapshots and updates that they are steered with."""
