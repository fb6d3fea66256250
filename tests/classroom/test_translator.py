"""The figure of a translator: its models as data, and one sentence where no script runs."""

import json

import pytest
from bs4 import BeautifulSoup

from classroom.translator import translator_figure


def test_it_carries_its_models_and_a_picture_that_needs_no_script():
    models = {"a </script> name": {"data": "<b>"}}
    figure = translator_figure(
        models, 'the "cat" .', [" the", " cat"], ["die", "(end)"], [[0.25, 0.75], [1, 0]], "A *b*."
    )
    page = BeautifulSoup(figure.html, "html.parser")
    assert json.loads(page.find("script", type="application/json").string) == models
    assert page.figure["data-sentence"] == 'the "cat" .' and page.figcaption.em.string == "b"
    rows = [[cell.get_text() for cell in row.find_all(["th", "td"])] for row in page.find_all("tr")]
    assert rows == [["", "the", "cat"], ["die", "0.25", "0.75"], ["(end)", "1.00", "0.00"]]
    assert str(figure) == 'the "cat" . -> die (end)'


def test_weights_of_another_shape_are_refused():
    with pytest.raises(ValueError, match=r"2 and 1 tokens need weights of that shape"):
        translator_figure({}, "a", ["a"], ["b", "c"], [[1.0], [0.5, 0.5]], "")
