"""Defects of `recurrent`, as in tests/book/torch_mutants.py: (what is wrong, the right code, the wrong code).

The code is as `ast.unparse` writes it, in which each right piece stands exactly once. PAIRS are the pieces alone.
"""

SCORES = "self.v(torch.tanh(self.w_s(state)[:, None] + keys)).squeeze(-1)"
STEP = "self.attention(state[0, -1], *memory)"
ASKED = f"for word in x.split(1, dim=1):\n                context, weights = {STEP}"
PACKED = "pack_padded_sequence(x, lengths, True, enforce_sorted=False)"
BRIDGED = "self.bridge(last.movedim(2, 0).flatten(1))"
UNPACKED = "pad_packed_sequence(packed, True, total_length=source.shape[1])"
LOGITS = "self.output(self.dropout(torch.tanh(self.readout(read))))"
ENDS = "source rows {gaps} have padding before a token"

RECURRENT = [
    ("padding is attended to", "scores.masked_fill(~real, -math.inf)", "scores"),
    ("the mask is inverted", "masked_fill(~real, -math.inf)", "masked_fill(real, -math.inf)"),
    ("a small number for minus infinity", "masked_fill(~real, -math.inf)", "masked_fill(~real, 0.0)"),
    ("softmax over the batch", ".softmax(dim=-1)", ".softmax(dim=0)"),
    ("scores without the bend", SCORES, SCORES.replace("torch.tanh", "")),
    ("the state does not ask", SCORES, SCORES.replace("self.w_s(state)[:, None] + ", "")),
    ("keys are blended, not the memory", "weights[:, None] @ memory", "weights[:, None] @ keys.repeat(1, 1, 2)"),
    ("padding is read by the encoder", PACKED, PACKED.replace("lengths", "torch.full_like(lengths, x.shape[1])")),
    ("the last word is not read", PACKED, PACKED.replace("lengths", "(lengths - 1).clamp(min=1)")),
    ("the directions' states are mixed up", BRIDGED, BRIDGED.replace("last", "last.flip(1)")),
    ("sentences' states are mixed up", BRIDGED, "self.bridge(last.reshape(x.shape[0], -1))"),
    (
        "the way back starts the decoder twice",
        BRIDGED,
        "self.bridge(last[:, 1::2].repeat(1, 2, 1, 1).movedim(2, 0).flatten(1))",
    ),
    ("state and cell are exchanged", "torch.stack(last) if self", "torch.stack(last[::-1]) if self"),
    (
        "the decoder starts with nothing",
        "state = state.movedim(0, 2).contiguous()",
        "state = 0 * state.movedim(0, 2).contiguous()",
    ),
    (
        "layers and parts are mixed up",
        "(1, (len(last), -1, x.shape[2]))",
        "(1, (-1, len(last), x.shape[2])).transpose(1, 2)",
    ),
    ("the memory is as short as its longest", UNPACKED, "pad_packed_sequence(packed, True)"),
    ("another token is padding", "padding_mask(source, self.config.pad_id)", "padding_mask(source, 0)"),
    ("padding before a token passes", "if gaps:", "if False:"),
    ("padding between tokens passes", "(real[:, 1:] & ~real[:, :-1])", "(real[:, 1:] & ~real[:, :1])"),
    ("other padding is named", ENDS, "source has padding before a token"),
    ("the lowest layer asks", STEP, STEP.replace("-1", "0")),
    ("the cell asks, not the state", STEP, STEP.replace("state[0,", "state[-1,")),
    ("the start asks at every step", ASKED, "start = state\n            " + ASKED.replace("state", "start")),
    ("no state is handed on", "hidden, state = self.advance(word, state)", "hidden, _ = self.advance(word, state)"),
    ("logits off by one", LOGITS, LOGITS + ".roll(1, dims=1)"),
    ("logits of the word before", "torch.cat([hidden, word], dim=-1)", "torch.cat([0 * hidden, word], dim=-1)"),
    ("the readout without a bend", LOGITS, LOGITS.replace("torch.tanh", "")),
    ("weights of the last step for all", "weights[:, None]))", "steps[0][1] if steps else weights[:, None]))"),
    (
        "without attention, words are not read out",
        "torch.cat([hidden, x], dim=-1)",
        "torch.cat([hidden, 0 * x], dim=-1)",
    ),
    ("dropout always on", LOGITS, "self.output(nn.functional.dropout(torch.tanh(self.readout(read)), self.dropout.p))"),
    ("no dropout of the source", "self.dropout(self.source_embeddings(source))", "self.source_embeddings(source)"),
    ("no dropout of the target", "self.dropout(self.target_embeddings(target))", "self.target_embeddings(target)"),
    ("no dropout before the output", LOGITS, "self.output(torch.tanh(self.readout(read)))"),
    ("dropout between layers that are not there", "c.dropout * (c.num_layers > 1)", "c.dropout"),
    ("no dropout between layers", "c.dropout * (c.num_layers > 1)", "0.0"),
    ("another gate is opened", "values[d:2 * d]", "values[:d]"),
    ("a GRU's gate is opened too", "'bias_ih' in name and c.cell == 'lstm'", "'bias_ih' in name"),
    ("embeddings start large", "std=d ** (-0.5)", "std=1.0"),
    ("nothing is shared", "if c.share_embeddings:", "if False:"),
    ("nothing is tied", "if c.tie_output:", "if False:"),
    ("everything is tied", "if c.tie_output:", "if True:"),
    ("the source's table is tied", "self.output.weight = self.target", "self.output.weight = self.source"),
    ("rows are not compared", "if target.shape[:-1] != state.shape[2:3]:", "if False:"),
    ("too many rows pass", "if target.shape[:-1] != state.shape[2:3]:", "if len(target) < state.shape[2]:"),
    ("a state stands still", "logits, _, self.state = self", "logits, _, _ = self"),
    (
        "selecting forgets the memory",
        "self.memory = tuple((part.index_select(0, rows) for part in self.memory))",
        "self.memory = tuple((part[:len(rows)] for part in self.memory))",
    ),
    (
        "selecting forgets the state",
        "self.state = self.state.index_select(2, rows)",
        "self.state = self.state[:, :, torch.arange(len(rows)) % len(self)]",
    ),
    ("rows are sorted", "self.state.index_select(2, rows)", "self.state.index_select(2, rows.sort().values)"),
    ("the number of layers for rows", "return self.state.shape[2]", "return self.state.shape[1]"),
    ("dropout of everything passes", "if not 0 <= self.dropout < 1:", "if not 0 <= self.dropout <= 1:"),
    ("padding may be a token of one side", "< min(sizes)", "< max(sizes)"),
    ("vocabularies of two sizes are shared", "if self.share_embeddings and sizes[0] != sizes[1]:", "if False:"),
    ("any cell passes", "if self.cell not in ('lstm', 'gru'):", "if False:"),
    ("nothing of a thing passes", "if getattr(self, name) < 1:", "if getattr(self, name) < 0:"),
]
PAIRS = [(right, wrong) for _, right, wrong in RECURRENT]
