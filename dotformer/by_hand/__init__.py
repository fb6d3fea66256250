"""Part I: attention in NumPy and float64, small enough to check on paper."""
