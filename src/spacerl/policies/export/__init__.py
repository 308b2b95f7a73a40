"""A policy as a file that runs without spacerl."""
