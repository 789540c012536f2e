"""Reads topics, streams, their volumes and lag, messages, and problems."""
