"""What every kind of job shares: the service, the supervisor, the store, the launchers."""
