"""The code of chapter 9, "How does a transformer answer?", in one file (MIT licence)."""

import math

import torch
from torch import nn
from torch.nn import functional as F


def sinusoids(T, D):
    rates = 10000 ** (-torch.arange(0, D, 2) / D)
    angles = torch.arange(T)[:, None] * rates
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1)  # (T, D)


class Attention(nn.Module):
    def __init__(self, d_model, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.w_q = nn.Linear(d_model, d_model)
        self.w_k = nn.Linear(d_model, d_model)
        self.w_v = nn.Linear(d_model, d_model)
        self.w_o = nn.Linear(d_model, d_model)

    def split(self, y):  # (B, T, D) -> (B, H, T, d_k)
        return y.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)

    def forward(self, x, context, mask):
        q = self.split(self.w_q(x))  # (B, H, T, d_k)
        k, v = self.split(self.w_k(context)), self.split(self.w_v(context))
        scaled = q @ k.mT / math.sqrt(q.shape[-1])  # (B, H, T, S)
        weights = scaled.masked_fill(~mask, -math.inf).softmax(dim=-1)
        return self.w_o((weights @ v).transpose(1, 2).flatten(2))  # (B, T, D)


class Layer(nn.Module):  # post-norm
    def __init__(self, d_model, num_heads, d_ff, dropout, cross):
        super().__init__()
        self.cross = cross
        self.self_attention = Attention(d_model, num_heads)
        self.norm_self = nn.LayerNorm(d_model)
        if cross:
            self.cross_attention = Attention(d_model, num_heads)
            self.norm_cross = nn.LayerNorm(d_model)
        self.up, self.down = nn.Linear(d_model, d_ff), nn.Linear(d_ff, d_model)
        self.norm_ff = nn.LayerNorm(d_model)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x, mask, memory=None, memory_mask=None):
        x = self.norm_self(x + self.dropout(self.self_attention(x, x, mask)))
        if self.cross:
            y = self.cross_attention(x, memory, memory_mask)
            x = self.norm_cross(x + self.dropout(y))
        return self.norm_ff(x + self.dropout(self.down(self.up(x).relu())))


class OneScreen(nn.Module):
    def __init__(self, vocab_size, d_model, heads, layers, d_ff, dropout=0.1, layer=Layer):
        super().__init__()
        self.source_table = nn.Embedding(vocab_size, d_model)
        self.target_table = nn.Embedding(vocab_size, d_model)
        sizes = d_model, heads, d_ff, dropout
        encoder = [layer(*sizes, cross=False) for _ in range(layers)]
        decoder = [layer(*sizes, cross=True) for _ in range(layers)]
        self.encoder, self.decoder = nn.ModuleList(encoder), nn.ModuleList(decoder)
        self.dropout = nn.Dropout(dropout)
        for matrix in (p for p in self.parameters() if p.ndim == 2):
            nn.init.xavier_uniform_(matrix)  # Glorot's initialisation: chapter 8
        # small: the target table also produces the logits
        for table in (self.source_table, self.target_table):
            nn.init.normal_(table.weight, std=d_model**-0.5)

    def forward(self, source, target):
        memory, memory_mask = self.encode(source)
        return self.decode(target, memory, memory_mask)

    def encode(self, source):
        mask = (source != 0)[:, None, None]  # (B, 1, 1, S); 0 is padding
        return self.stack(self.source_table, self.encoder, source, mask), mask

    def decode(self, target, memory, memory_mask):
        T = target.shape[1]
        causal = torch.ones(T, T, dtype=torch.bool, device=target.device).tril()
        mask = causal & (target != 0)[:, None, None]  # (B, 1, T, T)
        table = self.target_table
        x = self.stack(table, self.decoder, target, mask, memory, memory_mask)
        return x @ table.weight.T  # tied to the embeddings: (B, T, V)

    def stack(self, table, layers, tokens, mask, memory=None, memory_mask=None):
        T, D = tokens.shape[1], table.embedding_dim
        x = table(tokens) * math.sqrt(D) + sinusoids(T, D).to(tokens.device)
        x = self.dropout(x)
        for layer in layers:
            x = layer(x, mask, memory, memory_mask)
        return x  # (B, T, D)


def batch(texts):
    rows = [torch.tensor([number[word] for word in text.split()]) for text in texts]
    return nn.utils.rnn.pad_sequence(rows, batch_first=True)


@torch.no_grad()
def generate(model, asked, longest=8):
    memory, mask = model.encode(asked)
    written = torch.full((len(asked), 1), number["<bos>"], device=asked.device)
    for _ in range(longest):
        logits = model.decode(written, memory, mask)  # (B, words so far, V)
        best = logits[:, -1].argmax(dim=-1)  # last row: the next word, (B,)
        written = torch.cat([written, best[:, None]], dim=1)  # (B, words + 1)
        if (written == number["<eos>"]).any(dim=1).all():  # all have ended
            break
    return written


def words(row):
    text = " ".join(vocabulary[n] for n in row.tolist())
    return text.removeprefix("<bos>").split(" <eos>")[0].strip()


def share_right(model, rows):
    written = generate(model, questions[rows], longest=answers.shape[1])
    both = zip(written, answers[rows], strict=True)
    right = [words(mine) == words(wanted) for mine, wanted in both]
    return sum(right) / len(right)


def hold_out(seed, key=str):
    """Rows held out, a fifth of the questions, and rows for training; `key` is for Going further."""
    keys = [key(question) for question, _ in pairs]
    unique = sorted(set(keys))
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(unique), generator=generator).tolist()
    held = {unique[n] for n in order[: len(unique) // 5]} | {"Hi , how are you ?"}
    rows = [n for n, k in enumerate(keys) if k in held]
    return rows, [n for n, k in enumerate(keys) if k not in held]


def fit(model, rows, held=(), steps=250, peak=0.01, seed=0):
    # rows: which of `questions` and `answers` to train on
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.Adam(model.parameters())
    model.train()
    for step in range(1, steps + 1):
        for group in optimizer.param_groups:
            group["lr"] = peak * min(1, step / 50)  # warm-up
        picked = torch.randint(len(rows), (32,), generator=generator)
        picked = torch.tensor(rows)[picked]
        logits = model(questions[picked], answers[picked, :-1])  # (32, T, V)
        wanted = answers[picked, 1:]  # (32, T)
        loss = F.cross_entropy(
            logits.flatten(0, 1),
            wanted.flatten(),
            ignore_index=0,  # no padding
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if held and step % 50 == 0:
            right = share_right(model.eval(), held)
            print(f"step {step}: loss {loss:.3f}, held out {right:.0%} right")
            model.train()
    model.eval()
    return loss.item()


def check(model, source, target, cut=3):  # tokens of some pairs
    drops = [m.p for m in model.modules() if isinstance(m, nn.Dropout)]
    assert not any(drops), "build the model with dropout=0.0 for this check"
    for mode in (True, False):
        model.train(mode)
        with torch.no_grad():
            before = model(source, target)
            changed = target.clone()
            changed[:, cut:] = target.roll(1, dims=0)[:, cut:]
            assert (changed != target).any(dim=1).all(), "rows must differ there"
            after = model(source, changed)
            padded = model(F.pad(source, (0, 2)), target)
            other = model(source.roll(1, dims=0), target)
        real = target != 0
        assert before[real].isfinite().all(), "a position may attend to nothing"
        early, late = slice(cut), slice(cut, None)
        assert torch.allclose(before[:, early], after[:, early], atol=1e-4), "the future leaks"
        assert not torch.allclose(before[:, late], after[:, late], atol=1e-2), "answer not read"
        assert torch.allclose(before[real], padded[real], atol=1e-4), "padding"
        assert not torch.allclose(before, other, atol=1e-2), "source not read"


@torch.no_grad()
def copy_attention(ours, theirs):
    """The parameters of an `Attention` into an `nn.MultiheadAttention`."""
    three = ours.w_q, ours.w_k, ours.w_v
    theirs.in_proj_weight.copy_(torch.cat([w.weight for w in three]))
    theirs.in_proj_bias.copy_(torch.cat([w.bias for w in three]))
    theirs.out_proj.load_state_dict(ours.w_o.state_dict())


def copied(layer):
    """PyTorch's layer with the parameters of a `Layer`."""
    attention = layer.self_attention
    sizes = attention.w_q.in_features, attention.num_heads, layer.up.out_features
    kind = nn.TransformerDecoderLayer if layer.cross else nn.TransformerEncoderLayer
    theirs = kind(*sizes, dropout=0.0, batch_first=True)
    copy_attention(attention, theirs.self_attn)
    norms = [layer.norm_self, layer.norm_ff]
    if layer.cross:
        copy_attention(layer.cross_attention, theirs.multihead_attn)
        norms.insert(1, layer.norm_cross)
    parts = {f"norm{n}": norm for n, norm in enumerate(norms, 1)}
    for name, ours in (parts | {"linear1": layer.up, "linear2": layer.down}).items():
        getattr(theirs, name).load_state_dict(ours.state_dict())
    return theirs


@torch.no_grad()
def by_pytorch(model, source, target):
    """The logits of a `OneScreen`, from PyTorch's layers; there True means hidden."""

    def embed(table, tokens):
        T, D = tokens.shape[1], table.embedding_dim
        return table(tokens) * math.sqrt(D) + sinusoids(T, D)

    memory, x = embed(model.source_table, source), embed(model.target_table, target)
    for layer in model.encoder:
        memory = copied(layer)(memory, src_key_padding_mask=source == 0)
    T = target.shape[1]
    masks = {
        "tgt_mask": ~torch.ones(T, T, dtype=torch.bool).tril(),
        "tgt_key_padding_mask": target == 0,
        "memory_key_padding_mask": source == 0,
    }
    for layer in model.decoder:
        x = copied(layer)(x, memory, **masks)
    return x @ model.target_table.weight.T


if __name__ == "__main__":
    REPLIES = {"you": "I am", "we": "you are", "they": "they are"}
    REPLIES |= {name: f"{name} is" for name in ("she", "he", "Ada", "Bo", "Cleo", "Dan")}
    pairs = []
    for greeting in ("", "Hi , ", "Hello , ", "Good morning , "):
        for person, reply in REPLIES.items():
            verb = "are" if person in ("you", "we", "they") else "is"
            how = f"{greeting}how {verb} {person} ?"
            pairs.append((how, f"{reply} fine"))
            for state in ("fine", "tired", "happy", "cold", "late"):
                asked = f"{verb} {person} {state} ?"
                pairs.append((greeting + asked, f"yes , {reply}"))
                if state != "fine":
                    doubt = f"who says {reply} {state} ?"
                    pairs.append((f"{greeting}why {asked}", doubt))
    seen = {word for asked, reply in pairs for word in f"{asked} {reply}".split()}
    vocabulary = ["<pad>", "<bos>", "<eos>", *sorted(seen)]
    number = {word: n for n, word in enumerate(vocabulary)}

    questions = batch(asked for asked, _ in pairs)  # (360, S)
    answers = batch(f"<bos> {reply} <eos>" for _, reply in pairs)  # (360, T + 1)
    print(tuple(questions.shape), tuple(answers.shape), len(vocabulary), "tokens")
    print(answers[0].tolist(), " ".join(vocabulary[n] for n in answers[0]))
    unseen, for_training = hold_out(seed=0)
    torch.manual_seed(0)
    screen = OneScreen(len(vocabulary), d_model=16, heads=2, layers=2, d_ff=64, dropout=0.0)
    fit(screen, for_training, unseen)
    for asked in ("why are we happy ?", "Hi , is she tired ?", "Hi , how are you ?"):
        print(f"   {asked:22} {words(generate(screen, batch([asked]))[0])}")

    torch.manual_seed(0)
    fresh = OneScreen(32, d_model=16, heads=2, layers=2, d_ff=64, dropout=0.0)
    check(fresh, torch.randint(3, 32, (8, 6)), torch.randint(3, 32, (8, 7)))

    source, target = torch.randint(3, 32, (8, 6)), torch.randint(3, 32, (8, 7))
    source[:4, 4:] = target[2:6, 5:] = 0  # padding
    for norm in fresh.modules():  # random, or exchanged norms would not show
        if isinstance(norm, nn.LayerNorm):
            nn.init.normal_(norm.weight)
            nn.init.normal_(norm.bias)
    theirs = by_pytorch(fresh, source, target)
    apart = (fresh(source, target) - theirs)[target != 0].abs().max()
    print(f"largest difference from PyTorch's layers: {apart:.0e}")
    assert apart < 1e-5
