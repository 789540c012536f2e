"""The engine under every stream: its journal of ids, its lease, its acknowledgements, its status file."""
