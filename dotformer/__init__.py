"""The transformer of the book, tangled from its chapters."""
