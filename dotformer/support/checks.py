"""Checks of values that no annotation can say, one line each where they are used."""


def check_positive(**sizes: int) -> None:
    """Raise ValueError, which names it, when one of the sizes is not at least 1."""
    for name, size in sizes.items():
        if size < 1:
            raise ValueError(f"{name} must be positive, not {size}")
