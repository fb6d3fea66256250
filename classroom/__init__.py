"""The reader's tools: quiz questions, exercise checks, plots, and the map of the transformer."""

from classroom.map import transformer_map

__all__ = ["transformer_map"]
