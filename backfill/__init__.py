"""Publishes the rows of a query over the archive to a topic again, with tags."""
