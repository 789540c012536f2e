"""What every kind of job shares: the store, the launchers, progress."""
