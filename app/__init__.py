"""Creates the objects of a process, each once, and closes them in order."""
