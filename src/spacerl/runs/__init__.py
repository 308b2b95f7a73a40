"""A run: its settings, and the folder that keeps it. No jax."""
