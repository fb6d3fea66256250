"""Defects of the modules in PyTorch: (what is wrong, the right code, the wrong code), as in `mutants`."""

FUSED = "F.scaled_dot_product_attention(q, k, v, mask, dropout)"
OURS = "heads, weights = scaled_dot_product_attention(q, k, v, mask, dropout)"
SPLIT = "x.unflatten(-1, (self.num_heads, -1)).transpose(-3, -2)"
MASKED = "scores.masked_fill(~mask & ~nothing, -math.inf).softmax(dim=-1)"
IN_TRAINING = "dropout = self.dropout if self.training else 0.0"

ATTENTION = [
    ("a cache is ignored", "if cache is None:", "if True:"),
    ("a cache keeps another attention's keys", "cache.project(self, key, value)", "cache.project(self, value, key)"),
    ("merged without the swap", "heads.transpose(-3, -2).flatten(-2)", "heads.reshape(query.shape)"),
    ("split without the swap", SPLIT, "x.reshape(*x.shape[:-2], self.num_heads, x.shape[-2], -1)"),
    ("scaled by the width of the model", OURS, OURS.replace("(q", "(q / self.num_heads ** 0.5")),
    ("the fused path scaled by the width of the model", FUSED, FUSED[:-1] + ", scale=self.d_model ** -0.5)"),
    ("not scaled", " / math.sqrt(query.shape[-1])", ""),
    ("the fused path not scaled", FUSED, FUSED[:-1] + ", scale=1.0)"),
    (
        "split before projecting",
        "self.split_heads(self.w_q(self.checked(query, 'query')))",
        "nn.functional.linear(self.split_heads(self.checked(query, 'query')), "
        "*(p[:self.d_model // self.num_heads] for p in (self.w_q.weight.unflatten(1, (self.num_heads, -1))[:, 0], "
        "*([] if self.w_q.bias is None else [self.w_q.bias]))))",
    ),
    ("the mask is inverted", "~mask & ~nothing, -math.inf", "mask & ~nothing, -math.inf"),
    (
        "the mask of the fused path is inverted",
        FUSED,
        FUSED.replace("mask", "None if mask is None else ~mask"),
    ),
    ("the mask is dropped in eval", IN_TRAINING, IN_TRAINING + "\n        mask = mask if self.training else None"),
    ("scores are multiplied by the mask", MASKED, "(scores * mask).softmax(dim=-1)"),
    ("the mask comes after the softmax", MASKED, "scores.softmax(dim=-1) * mask"),
    ("softmax over the queries", "weights = scores.softmax(dim=-1)", "weights = scores.softmax(dim=-2)"),
    ("a large number for minus infinity", "~nothing, -math.inf)", "~nothing, -1000000000.0)"),
    ("NaN on the way through a row with nothing to attend to", "~mask & ~nothing, -math.inf", "~mask, -math.inf"),
    ("the mean in a row with nothing to attend to", "weights.masked_fill(nothing, 0.0)", "weights"),
    ("the fused path forgets the mask", FUSED, FUSED.replace("mask", "None")),
    ("the fused path forgets dropout", FUSED, FUSED.replace(", dropout", "")),
    ("dropout in eval", IN_TRAINING, "dropout = self.dropout"),
    ("dropout of outputs", "F.dropout(weights, dropout) @ value", "F.dropout(weights @ value, dropout)"),
    (
        "dropout before the softmax",
        "F.dropout(weights, dropout) @ value",
        "F.dropout(scores, dropout).softmax(dim=-1) @ value",
    ),
    (
        "weights are returned dropped",
        "    return (F.dropout(weights, dropout) @ value, weights)",
        "    weights = F.dropout(weights, dropout)\n    return (weights @ value, weights)",
    ),
    ("keys are averaged, not values", "self.w_v(self.checked(value, 'value'))", "self.w_v(self.checked(key, 'key'))"),
    ("W_O is dropped", "self.w_o(heads.transpose(-3, -2).flatten(-2))", "heads.transpose(-3, -2).flatten(-2)"),
    ("W_O always has a bias", "self.w_o = nn.Linear(d_model, d_model, bias)", "self.w_o = nn.Linear(d_model, d_model)"),
    ("a mask of numbers passes", "if mask.dtype != torch.bool:", "if False:"),
    ("a mask without an axis for the heads passes", "if 2 < mask.ndim < len(shape):", "if False:"),
    ("records keep the graph", "output[1].detach()", "output[1]"),
    ("records all go to one name", ", name: str=name", ""),
    ("hooks stay after an exception", "    finally:\n", "    except ZeroDivisionError:\n        pass\n    else:\n"),
]

LAYER_NORM = (
    "self.norm = nn.LayerNorm(d_model, eps=eps)\n        self.dropout = nn.Dropout(dropout)\n        self.norm_"
)
FINAL_NORM = "wanted = norm_first if final_norm is None else final_norm"

ENCODER = [
    ("positions are not added", "self.dropout(x + self.table[start:end])", "self.dropout(x)"),
    ("start is ignored", "self.table[start:end]", "self.table[:end - start]"),
    (
        "positions are dropped, words are not",
        "self.dropout(x + self.table[start:end])",
        "x + self.dropout(self.table[start:end])",
    ),
    (
        "learned positions are not trained",
        "nn.Parameter(torch.randn(max_length, d_model) * 0.02)",
        "torch.randn(max_length, d_model) * 0.02",
    ),
    ("sinusoids are saved", "persistent=False", "persistent=True"),
    (
        "sinusoids are trained",
        "self.register_buffer('table', table, persistent=False)",
        "self.table = nn.Parameter(table)",
    ),
    ("places beyond the table pass", "if end > len(self.table):", "if False:"),
    ("one place too few", "if end > len(self.table):", "if end >= len(self.table):"),
    ("gelu by its tanh approximation", "'gelu': nn.GELU", "'gelu': lambda: nn.GELU('tanh')"),
    ("always relu", "bends[activation]()", "nn.ReLU()"),
    ("no bend", "self.bend(self.expand(x))", "self.expand(x)"),
    ("the norm stands on the other side", "if self.norm_first:", "if not self.norm_first:"),
    ("no residual", "self.norm(x + self.dropout(sublayer(x)))", "self.norm(self.dropout(sublayer(x)))"),
    (
        "the normalised x goes on",
        "return x + self.dropout(sublayer(self.norm(x)))",
        "return self.norm(x) + self.dropout(sublayer(self.norm(x)))",
    ),
    ("dropout of the sum", "self.norm(x + self.dropout(sublayer(x)))", "self.norm(self.dropout(x + sublayer(x)))"),
    (
        "dropout in eval",
        "self.norm(x + self.dropout(sublayer(x)))",
        "self.norm(x + nn.functional.dropout(sublayer(x), self.dropout.p))",
    ),
    ("another eps", LAYER_NORM, LAYER_NORM.replace("eps=eps", "eps=1e-06")),
    (
        "eps of embeddings is the default",
        "nn.LayerNorm(d_model, eps=eps) if norm else",
        "nn.LayerNorm(d_model) if norm else",
    ),
    (
        "the unbiased deviation, eps outside the root",
        "self.norm(x + self.dropout(sublayer(x)))",
        "(lambda y: self.norm.weight * (y - y.mean(-1, keepdim=True)) / (y.std(-1, keepdim=True) + self.norm.eps)"
        " + self.norm.bias)(x + self.dropout(sublayer(x)))",
    ),
    ("the layer forgets its mask", "self.attention(x, x, x, mask)", "self.attention(x, x, x)"),
    ("only the first layer knows the mask", "x = layer(x, mask)", "x, mask = layer(x, mask), None"),
    (
        "layers share their parameters",
        "(EncoderLayer(d_model, num_heads, d_ff, *options) for _ in range(num_layers))",
        "[EncoderLayer(d_model, num_heads, d_ff, *options)] * num_layers",
    ),
    ("the final norm is missing", FINAL_NORM, "wanted = False"),
    ("the final norm always stands", FINAL_NORM, "wanted = True"),
    ("the final norm cannot be left out", FINAL_NORM, "wanted = norm_first or final_norm"),
    ("embeddings are not scaled", "self.tokens(tokens) * self.scale", "self.tokens(tokens)"),
    ("embeddings are scaled down", "self.tokens(tokens) * self.scale", "self.tokens(tokens) / self.scale"),
    (
        "positions are scaled with the words",
        "x = self.positions(x, start)",
        "x = self.positions(x / self.scale, start) * self.scale",
    ),
    ("embeddings start at size 1", "nn.init.normal_(self.tokens.weight, std=d_model ** (-0.5))", "pass"),
    ("the wrong segment", "self.segments.weight[0]", "self.segments.weight[1]"),
    ("segments are forgotten", "if self.segments is not None:", "if False:"),
    ("dropout before the norm of embeddings", "self.dropout(self.norm(x))", "self.norm(self.dropout(x))"),
    ("fractions pass for tokens", "if tokens.dtype not in (torch.int32, torch.int64):", "if False:"),
]

TOKENS = [
    (
        "rare pairs come first",
        "queue = [(-n, pair) for pair, n in pairs.items()]",
        "queue = [(n, pair) for pair, n in pairs.items()]",
    ),
    ("stale counts are used", "if pairs[pair] != -n:", "if False:"),
    ("a word counts once", "pairs[pair] += times[place]", "pairs[pair] += 1"),
    ("old pairs keep their counts", "pairs[old] -= times[place]", "pairs[old] -= 0"),
    ("new pairs are not queued", "touched.add(new)", "None"),
    ("overlapping pairs merge twice", "i += 2", "i += 1"),
    ("numbers of the special tokens are taken", "n + shift for word", "n for word"),
    ("begin and end are swapped", "[self.begin_id, *tokens, self.end_id]", "[self.end_id, *tokens, self.begin_id]"),
    ("the merge learnt last comes first", "pair = min(pairwise(symbols)", "pair = max(pairwise(symbols)"),
    ("space around a text is lost", "regex.findall(pattern, text)", "regex.findall(pattern, text.strip())"),
    ("capitals are lost", "regex.findall(pattern, text)", "regex.findall(pattern, text.lower())"),
    ("unreadable bytes are left out", "decode(errors='replace')", "decode(errors='ignore')"),
    ("negative numbers are tokens", "if not 0 <= token < len(self):", "if not token < len(self):"),
    (
        "a saved file is overwritten in place",
        "draft.write_text(text, encoding='utf-8')",
        "(Path(path).write_text(text, encoding='utf-8'), draft.write_text(text, encoding='utf-8'))",
    ),
    ("padding is always 0", "padding_value=pad_id", "padding_value=0"),
    (
        "padding does not count",
        "lengths[n] * (len(batches[-1]) + 1) > max_tokens",
        "lengths[n] + sum((lengths[m] for m in batches[-1])) > max_tokens",
    ),
    ("batches stay sorted", "return [batches[n] for n in order]", "return batches"),
    (
        "batches are the same every time",
        "shuffled = torch.randperm(len(lengths), generator=generator).tolist()",
        "shuffled = list(range(len(lengths)))",
    ),
    ("batches ignore length", "sorted(shuffled, key=lambda n: lengths[n])", "shuffled"),
]
PRETRAINED = [
    ("the mean counts padding", "(self(tokens, mask) * real).sum(dim=1)", "self(tokens, mask).sum(dim=1)"),
    ("vectors are not of length 1", "nn.functional.normalize(torch.cat(means), dim=-1)", "torch.cat(means)"),
    (
        "the first piece stands for the sentence",
        "means.append(total / real.sum(dim=1))",
        "means.append(self(tokens, mask)[:, 0])",
    ),
    ("padding is attended to", "(self(tokens, mask) * real)", "(self(tokens) * real)"),
    ("a batch starts anew", "sentences[first:first + batch_size]", "sentences[:batch_size]"),
    ("another eps", "activation='gelu', eps=1e-12", "activation='gelu'"),
    ("relu", ", activation='gelu'", ""),
    ("embeddings are scaled", "scale=False", "scale=True"),
    ("queries and keys change matrices", "'attention.self.query'", "'attention.self.key'"),
    (
        "norms change places",
        "'feed_forward_add_norm.norm': 'output.LayerNorm'",
        "'feed_forward_add_norm.norm': 'attention.output.LayerNorm'",
    ),
    ("long sentences are cut", "    tokenizer.no_truncation()\n", ""),
    ("the sum is not checked", "if found != sums[name]:", "if False:"),
    ("the folder is ignored", "if folder is None:", "if True:"),
    ("left in training mode", "return model.eval()", "return model"),
    ("gradients are kept", "    @torch.no_grad()\n", ""),
]

CROSS = "self.cross_attention(x, memory, memory, memory_mask, cache=cache)"

DECODER = [
    ("the causal mask without its diagonal", ".tril()", ".tril(-1)"),
    ("the causal mask lets the future through", ".tril()", ".triu()"),
    ("the causal mask looks one ahead", ".tril()", ".tril(1)"),
    ("the padding mask is inverted", "return real[:, None, None]", "return ~real[:, None, None]"),
    ("the padding mask hides queries, not keys", "return real[:, None, None]", "return real[:, None, :, None]"),
    ("padding is always 0", "tokens != pad_id", "tokens != 0"),
    ("empty sentences pass", "if not unchecked and", "if False and"),
    ("empty sentences are looked for on a GPU", "tokens.device.type != 'cpu' or", ""),
    (
        "the causal mask is dropped in eval",
        "self.self_attention(x, x, x, mask, cache=cache)",
        "self.self_attention(x, x, x, mask if self.training else None, cache=cache)",
    ),
    ("the memory mask is forgotten", CROSS, "self.cross_attention(x, memory, memory)"),
    ("the causal mask stands before the memory", CROSS, "self.cross_attention(x, memory, memory, mask)"),
    (
        "a causal mask on cross-attention",
        CROSS,
        "self.cross_attention(x, memory, memory, torch.ones(x.shape[-2], memory.shape[-2], dtype=torch.bool).tril()"
        " & (memory_mask if memory_mask is not None else torch.tensor(True)))",
    ),
    ("queries come from the memory", CROSS, "self.cross_attention(memory, memory, memory, memory_mask)"),
    ("keys come from the decoder", CROSS, "self.cross_attention(x, x, memory, memory_mask)"),
    ("cross-attention looks at the decoder", CROSS, "self.cross_attention(x, x, x, mask)"),
    ("one attention does both", CROSS, CROSS.replace("cross", "self")),
    ("one norm stands twice", "x = self.cross_attention_add_norm(", "x = self.self_attention_add_norm("),
    ("no feed-forward network", "return self.feed_forward_add_norm(x, self.feed_forward)", "return x"),
    (
        "only the first layer knows the masks",
        "x = layer(x, memory, mask, memory_mask, cache)",
        "x = layer(x, memory, mask, memory_mask, cache)\n            mask = memory_mask = None",
    ),
    (
        "the memory goes through the layers",
        "x = layer(x, memory, mask, memory_mask, cache)",
        "x = layer(x, memory, mask, memory_mask, cache)\n            memory = layer.feed_forward(memory)",
    ),
    ("the final norm is missing", FINAL_NORM, "wanted = False"),
    ("the final norm always stands", FINAL_NORM, "wanted = True"),
    ("self-attention has no cache", "x, x, x, mask, cache=cache)", "x, x, x, mask)"),
    ("cross-attention has no cache", CROSS, CROSS.replace(", cache=cache", "")),
    (
        "a cache is not passed on",
        "x = layer(x, memory, mask, memory_mask, cache)",
        "x = layer(x, memory, mask, memory_mask)",
    ),
]

MASK = "mask = causal_mask(real.shape[-1], target.device)[start:] & real"

TRANSFORMER = [
    (
        "the causal mask is dropped in eval",
        MASK,
        "mask = (causal_mask(real.shape[-1], target.device)[start:] if self.training else True) & real",
    ),
    ("causal or padding, one is enough", MASK, MASK.replace("&", "|")),
    ("padding of targets is attended to", MASK, MASK.replace(" & real", "")),
    ("a cache is not seen", "(start, 0), value=True)", "(start, 0), value=False)"),
    ("a cache is not counted", "else cache.length", "else 0"),
    ("several tokens at once see their future", "if start == 0 or target.shape[1] > 1:", "if start == 0:"),
    ("every target stands at the start", "self.target_embeddings(target, start)", "self.target_embeddings(target)"),
    ("a cache is not passed on", "memory, mask, memory_mask, cache)", "memory, mask, memory_mask)"),
    (
        "padding of sources is attended to",
        "self.encoder(self.source_embeddings(source), mask)",
        "self.encoder(self.source_embeddings(source))",
    ),
    ("the decoder looks at padding", "memory, mask, memory_mask, cache)", "memory, mask, cache=cache)"),
    ("padding is always 0", "padding_mask(source, self.config.pad_id)", "padding_mask(source, 0)"),
    (
        "the memory of a lower layer",
        "return (self.encoder(self.source_embeddings(source), mask), mask)",
        "return (self.encoder.norm(self.encoder.layers[0](self.source_embeddings(source), mask)), mask)",
    ),
    ("sources are looked up among targets", "self.source_embeddings(source)", "self.target_embeddings(source)"),
    ("the output is not tied", "if c.tie_output:", "if False:"),
    ("the output is always tied", "if c.tie_output:", "if True:"),
    (
        "the output is a copy",
        "self.output.weight = self.target_embeddings.tokens.weight",
        "self.output.weight.data = self.target_embeddings.tokens.weight.data.clone()",
    ),
    (
        "the output is tied to the source",
        "self.output.weight = self.target_embeddings",
        "self.output.weight = self.source_embeddings",
    ),
    ("tables are not shared", "if c.share_embeddings:", "if False:"),
    ("the output has a bias", "c.target_vocab_size, bias=False)", "c.target_vocab_size)"),
    ("matrices start as PyTorch's do", "nn.init.xavier_uniform_(module.weight)", "pass"),
    ("matrices start normal", "nn.init.xavier_uniform_", "nn.init.xavier_normal_"),
    ("biases start as PyTorch's do", "nn.init.zeros_(module.bias)", "pass"),
    (
        "embeddings start like matrices",
        "if isinstance(module, nn.Linear):",
        "if isinstance(module, nn.Embedding):\n                nn.init.xavier_uniform_(module.weight)\n"
        "            if isinstance(module, nn.Linear):",
    ),
    ("embeddings are not dropped", "sizes = (c.d_model, c.max_length, c.dropout)", "sizes = (c.d_model, c.max_length)"),
    (
        "layers are not dropped",
        "stack = (c.d_model, c.num_heads, c.d_ff, c.dropout)",
        "stack = (c.d_model, c.num_heads, c.d_ff, 0.0)",
    ),
    ("the decoder has as many layers as the encoder", "Decoder(c.num_decoder_layers,", "Decoder(c.num_encoder_layers,"),
    ("norm_first is forgotten", "options = (c.norm_first, ", "options = (False, "),
    ("final_norm is forgotten", "c.final_norm, c.activation)", "None, c.activation)"),
    ("max_length is forgotten", "sizes = (c.d_model, c.max_length, ", "sizes = (c.d_model, 5000, "),
    ("a shared table of two sizes passes", "if self.share_embeddings and ", "if False and "),
]

FILES = [
    ("a draft is left behind", "draft.unlink(missing_ok=True)", "pass"),
    ("the file itself is written to", "yield draft", "yield path"),
    ("the draft is for everybody", ".{os.getpid()}", ""),
    (
        "an error counts as success",
        "    try:\n        yield draft\n",
        "    try:\n        with suppress(OSError):\n            yield draft\n",
    ),
    ("nothing is replaced", "draft.replace(path)", "path.touch()"),
    ("it need not be on the disk", "os.fsync(file.fileno())", "pass"),
]

TORCH = {
    "files": FILES,
    "attention": ATTENTION,
    "encoder": ENCODER,
    "pretrained": PRETRAINED,
    "tokens": TOKENS,
    "decoder": DECODER,
    "transformer": TRANSFORMER,
}
