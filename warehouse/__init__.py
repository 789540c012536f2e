"""Reads and writes tables through one interface, with one implementation for each warehouse."""
