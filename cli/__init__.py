"""Runs the commands of the terminal."""
