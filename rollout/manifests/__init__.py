"""Manifests in YAML: schedules, templates and rollouts, applied together, and the engine of schedules."""
