"""The map of the transformer: every part of it, drawn as built, being built or still to come.

transformer_map(built=3), shown in chapter 3, lights the parts of the chapters before it and makes its own stand out.
"""

from dataclasses import dataclass

from classroom import map_drawing

FIRST_CHAPTER, LAST_CHAPTER = 1, 22


@dataclass(frozen=True)
class Part:
    """A part of the transformer and the chapter that builds it."""

    name: str
    chapter: int


PARTS = (
    Part("dot product", 2),
    Part("softmax", 3),
    Part("scale", 3),
    Part("weighted average", 3),
    Part("queries, keys and values", 4),
    Part("self-attention", 4),
    Part("positions", 5),
    Part("heads", 6),
    Part("gradients", 7),
    Part("add and norm", 8),
    Part("feed-forward", 8),
    Part("encoder stack", 8),
    Part("masks", 4),
    Part("masked self-attention", 9),
    Part("cross-attention", 9),
    Part("decoder stack", 9),
    Part("embeddings", 8),
    Part("output layer", 9),
    Part("tokens", 10),
    Part("loss", 11),
    Part("generation", 12),
)


@dataclass(frozen=True)
class TransformerMap:
    """The map as it stands in one chapter; displays as SVG, and as a sentence where there are no pictures."""

    built: int
    reading: bool = True

    @property
    def parts(self) -> dict[str, str]:
        """The state of every part by its name: 'built', 'this chapter' or 'to come'."""
        return {part.name: self._state(part) for part in PARTS}

    def _state(self, part: Part) -> str:
        if part.chapter == self.built and self.reading:
            return "this chapter"
        return "built" if part.chapter <= self.built else "to come"

    def _repr_svg_(self) -> str:
        return map_drawing.svg(self.parts, repr(self))

    def __repr__(self) -> str:
        """Say in one sentence what the map shows, for readers who cannot see it."""
        listed = {
            state: "; ".join(name for name, of in self.parts.items() if of == state) or "no part"
            for state in ("built", "this chapter", "to come")
        }
        if listed["to come"] == listed["this chapter"] == "no part":
            return "Map of the transformer: every part is built."
        chapter = f" This chapter: {listed['this chapter']}." if self.reading else ""
        return f"Map of the transformer. Built so far: {listed['built']}.{chapter}"


def transformer_map(built: int, *, reading: bool = True) -> TransformerMap:
    """Return the map for a reader of chapter number `built`, or with `reading` off for one who has finished it.

    Raises ValueError for a number that is no chapter's.
    """
    if not isinstance(built, int) or not FIRST_CHAPTER <= built <= LAST_CHAPTER:
        raise ValueError(f"built must be the number of a chapter, {FIRST_CHAPTER} to {LAST_CHAPTER}, got {built!r}")
    return TransformerMap(built, reading)
