"""Mathematics: pure functions on arrays. Imports jax and spacerl.types, nothing else."""
