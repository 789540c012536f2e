"""Collectors: events come in over HTTP and are answered once they are durable."""
