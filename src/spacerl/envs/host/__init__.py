"""Anyone's Gymnasium environment: built from a name, stepped in worker processes, translated to our arrays.

Nothing in this package imports jax: a worker process starts quickly and holds nothing but the environment.
"""
