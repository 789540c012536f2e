"""The tables: one port, and an implementation of it for each warehouse."""
