"""Data to learn from, written by hand: corpora, and how they are downloaded, checked and cached."""
