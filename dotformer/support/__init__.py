"""What no chapter teaches, written by hand: the check of shapes."""
