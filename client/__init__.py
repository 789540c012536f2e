"""The client of the HTTP API, for the terminal and the console: JSON in and out, problems as errors."""
