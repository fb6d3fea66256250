"""A translator that runs in the page: a form, where scripts run, and one sentence with its weights where they do not.

The scripts are those of the folder `dotformer/page`, which the rendered book loads; the figure carries the models.
"""

import html
import json
from collections.abc import Mapping, Sequence
from typing import Any

from classroom.quiz import Question
from classroom.text import to_html


def translator_figure(
    models: Mapping[str, Any],
    sentence: str,
    source: Sequence[str],
    target: Sequence[str],
    weights: Sequence[Sequence[float]],
    caption: str,
) -> Question:
    """A figure with the models, by name, as JSON; `weights` (T, S) are those of the still picture."""
    if [len(target)] + [len(source)] * len(target) != [len(weights), *map(len, weights)]:
        raise ValueError(f"{len(target)} and {len(source)} tokens need weights of that shape")
    head = "".join(f'<th scope="col">{html.escape(token.strip())}</th>' for token in source)
    rows = ""
    for token, row in zip(target, weights, strict=True):
        cells = "".join(f"<td>{weight:.2f}</td>" for weight in row)
        rows += f'<tr><th scope="row">{html.escape(token.strip())}</th>{cells}</tr>'
    data = json.dumps(models, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    page = (
        f'<figure class="translator" data-sentence="{html.escape(sentence)}"><table><thead><tr><td></td>{head}</tr>'
        f"</thead><tbody>{rows}</tbody></table>"
        f'<script type="application/json">{data}</script><figcaption>{to_html(caption)}</figcaption></figure>'
    )
    return Question(page, f"{sentence} -> {' '.join(token.strip() for token in target)}")
