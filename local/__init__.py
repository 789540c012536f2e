"""Embedded servers that speak the real protocols."""
