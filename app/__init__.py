"""Wiring: one process makes its objects here, each once, and closes them in order."""
