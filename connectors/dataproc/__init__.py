"""Dataproc Serverless: drivers as batches of Google's own Spark."""
