"""Prints the map of the transformer as SVG for the book's front page: `python -m classroom 4` after chapter 4."""

import sys

from classroom import transformer_map

if __name__ == "__main__":
    print(transformer_map(int(sys.argv[1]), reading=False)._repr_svg_())
