"""The one thing about scores that their shape cannot say."""

import numpy as np


def check_scores(highest: np.ndarray) -> None:
    """Raise ValueError unless `highest`, the largest score of each row, is finite: else the row has no weights.

    It is minus infinity where a mask leaves nothing, plus infinity where dot products overflow, NaN where an input is.
    """
    if not np.isfinite(highest).all():
        raise ValueError(
            "a row of scores has nothing to attend to, or holds NaN or infinity: its largest is not finite"
        )
