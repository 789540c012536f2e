"""The inventory: topics, streams, their volumes and lag, messages, and what is wrong."""
