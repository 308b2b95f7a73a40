"""Baselines from demonstrations: behaviour cloning, and DDPG on the logged data alone."""
