"""Collectors: receive events over HTTP, and answer as soon as the events are durable."""
