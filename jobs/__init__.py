"""Shared by all kinds of jobs: the service, the supervisor, the store, the launchers."""
