"""The service, supervisor, store and launchers that all kinds of jobs share."""
