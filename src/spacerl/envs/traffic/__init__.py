"""The traffic tasks on SUMO: lights of a road grid, autonomous vehicles in a bottleneck. Nothing here imports jax."""
