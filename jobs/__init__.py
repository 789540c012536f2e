"""Has the service, the supervisor, the store and the launchers that all kinds of jobs share."""
