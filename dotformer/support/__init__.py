"""What no chapter teaches, written by hand: the check of shapes, and a recorder of attention weights."""
