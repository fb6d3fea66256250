"""Defects of `recurrent`, as in tests/book/torch_mutants.py: (what is wrong, the right code, the wrong code).

The code is as `ast.unparse` writes it, in which each right piece stands exactly once. PAIRS are the pieces alone.
"""

SCORES = "self.v(torch.tanh(self.w_s(state)[:, None] + keys)).squeeze(-1)"
STEP = "self.attention(state[0, -1], *memory)"
PACKED = "pack_padded_sequence(x, lengths, True, enforce_sorted=False)"
BRIDGED = "self.bridge(last.movedim(2, 0).flatten(1))"
UNPACKED = "pad_packed_sequence(packed, True, total_length=source.shape[1])"
LOGITS = "self.output(self.dropout(torch.tanh(self.readout(read))))"

RECURRENT = [
    ("padding is attended to", "scores.masked_fill(~real, -math.inf)", "scores"),
    ("a small number for minus infinity", "masked_fill(~real, -math.inf)", "masked_fill(~real, 0.0)"),
    ("softmax over the batch", ".softmax(dim=-1)", ".softmax(dim=0)"),
    ("scores without the bend", SCORES, SCORES.replace("torch.tanh", "")),
    ("keys are blended, not the memory", "weights[:, None] @ memory", "weights[:, None] @ keys.repeat(1, 1, 2)"),
    ("padding is read by the encoder", PACKED, PACKED.replace("lengths", "torch.full_like(lengths, x.shape[1])")),
    ("the directions' states are mixed up", BRIDGED, BRIDGED.replace("last", "last.flip(1)")),
    ("sentences' states are mixed up", BRIDGED, "self.bridge(last.reshape(x.shape[0], -1))"),
    ("state and cell are exchanged", "torch.stack(last) if self", "torch.stack(last[::-1]) if self"),
    (
        "layers and parts are mixed up",
        "(1, (len(last), -1, x.shape[2]))",
        "(1, (-1, len(last), x.shape[2])).transpose(1, 2)",
    ),
    ("the memory is as short as its longest", UNPACKED, "pad_packed_sequence(packed, True)"),
    ("another token is padding", "padding_mask(source, self.config.pad_id)", "padding_mask(source, 0)"),
    ("padding between tokens passes", "(real[:, 1:] & ~real[:, :-1])", "(real[:, 1:] & ~real[:, :1])"),
    ("the lowest layer asks", STEP, STEP.replace("-1", "0")),
    ("the cell asks, not the state", STEP, STEP.replace("state[0,", "state[-1,")),
    ("no state is handed on", "hidden, state = self.advance(word, state)", "hidden, _ = self.advance(word, state)"),
    ("logits of the word before", "torch.cat([hidden, word], dim=-1)", "torch.cat([0 * hidden, word], dim=-1)"),
    ("weights of the last step for all", "weights[:, None]))", "steps[0][1] if steps else weights[:, None]))"),
    ("dropout always on", LOGITS, "self.output(nn.functional.dropout(torch.tanh(self.readout(read)), self.dropout.p))"),
    ("no dropout before the output", LOGITS, "self.output(torch.tanh(self.readout(read)))"),
    ("another gate is opened", "values[d:2 * d]", "values[:d]"),
    ("nothing is shared", "if c.share_embeddings:", "if False:"),
    ("everything is tied", "if c.tie_output:", "if True:"),
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
]
PAIRS = [(right, wrong) for _, right, wrong in RECURRENT]
