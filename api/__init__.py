"""HTTP: requests to calls, errors to problems."""
