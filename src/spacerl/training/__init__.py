"""Training: one update, the loop around it, and what is built from runs: sweeps, iterations, comparisons."""
