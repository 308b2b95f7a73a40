"""What `benchmarks/attack.py` tries, one kind of attack per file."""
