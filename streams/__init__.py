"""The engine of every stream: journal of ids, lease, acknowledgements, status file."""
