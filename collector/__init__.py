"""Receives events over HTTP, and answers as soon as the events are durable."""
