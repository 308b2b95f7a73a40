"""Episodes: on the device by one scan, on the host one tick at a time; evaluation and films of them."""
