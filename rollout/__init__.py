"""Manages launched streams with their releases, templates, snapshots and updates."""
