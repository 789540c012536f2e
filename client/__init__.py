"""The HTTP API's client, which the terminal and the console share: JSON in and out, problems as errors."""
