"""Demonstrations: keys pressed by a person become episodes of a Minari dataset, which can be shown and learned from."""
