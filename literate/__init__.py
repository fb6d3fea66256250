"""The author's tools: read a chapter, tangle it into the package, weave it into a notebook, index names, render."""
