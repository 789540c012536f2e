"""What every stream needs: its journal of ids, its lease, its status file, its hold on messages."""
