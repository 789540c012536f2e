"""Has embedded servers for development that implement the real protocols."""
