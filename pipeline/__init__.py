"""Runs the streams that turn JSON messages into rows of staging tables."""
