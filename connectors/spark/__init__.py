"""Spark: finding Java, building sessions, starting drivers."""
