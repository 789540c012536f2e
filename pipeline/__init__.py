"""The pipeline: streams that turn JSON messages into rows of staging tables."""
