"""The control of `benchmarks.stories` beside the model that it is a control for."""

import torch

from benchmarks.stories import PlacedTokens
from dotformer.reading import FactTransformer
from dotformer.transformer import TransformerConfig
from tests.reference.strategies import drawn_anew


def test_placed_tokens_are_the_terms_of_each_line_with_its_position(monkeypatch):
    """Lines (7, 5), (13, 4, 9) and (13, 6) of one story, and a shorter one with padding behind it."""
    config = TransformerConfig(20, 20, d_model=8, num_heads=2, num_encoder_layers=1, num_decoder_layers=1, d_ff=16)
    placed, facts = PlacedTokens(config), FactTransformer(config)
    drawn_anew(placed, 0).float().eval()
    facts.load_state_dict(placed.state_dict())
    facts.eval()
    source = torch.tensor([[7, 5, 13, 4, 9, 13, 6], [8, 13, 5, 5, 0, 0, 0]])
    monkeypatch.setattr(placed.encoder, "forward", lambda x, mask: x)
    terms, mask = placed.encode(source)
    lines, seen = facts.embed(source)
    assert torch.equal(mask[:, 0, 0], source != 0)
    positions = placed.source_embeddings.positions.table
    for row, number in enumerate(([0, 0, 1, 1, 1, 2, 2], [0, 1, 1, 1])):
        for line in {*number}:
            tokens = [n for n, one in enumerate(number) if one == line]
            expected = (terms[row, tokens] - positions[line]).sum(dim=0) + positions[line]
            torch.testing.assert_close(lines[row, line], expected)
    assert seen[:, 0, 0].tolist() == [[True, True, True], [True, True, False]]
