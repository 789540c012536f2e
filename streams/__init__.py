"""Has the engine of every stream, with its journal of ids, lease, acknowledgements and status file."""
