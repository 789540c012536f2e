"""Manifests: schedules that people write down as YAML, applied as a whole, and the engine that runs them."""
