"""What becomes of a model whose text is cut otherwise than it has learnt."""

import pytest

from benchmarks.tokens import one_word_in_letters
from classroom.measured import measured


def test_what_was_measured_is_what_the_model_does():
    assert one_word_in_letters() == pytest.approx(measured("tokens")["grammar"], abs=0.005)
