"""What no chapter teaches, written by hand: shapes, settings, files, checkpoints, processes, recorded weights."""
