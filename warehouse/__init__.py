"""Where tables live: one port, and what stands behind it."""
