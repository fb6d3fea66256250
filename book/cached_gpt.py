"""The code of chapter 12, "How does it write?", in one file (MIT licence)."""

import torch
from torch import nn
from torch.nn import functional as F


class CachedAttention(nn.Module):
    def __init__(self, d_model, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.qkv = nn.Linear(d_model, 3 * d_model)
        self.w_o = nn.Linear(d_model, d_model)

    def forward(self, x, cache):  # x (B, T, D): new tokens only
        q, k, v = (
            y.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for y in self.qkv(x).chunk(3, dim=-1)
        )  # (B, H, T, d_k) each
        if cache is not None:  # earlier keys and values, along the tokens
            k, v = torch.cat([cache[0], k], dim=2), torch.cat([cache[1], v], dim=2)
        T, S = q.shape[2], k.shape[2]
        # new token t stands at S - T + t, and sees what stands up to there
        mask = torch.ones(T, S, dtype=torch.bool, device=x.device).tril(S - T)
        heads = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.w_o(heads.transpose(1, 2).flatten(2)), (k, v)


class Block(nn.Module):  # pre-norm
    def __init__(self, d_model, num_heads):
        super().__init__()
        self.attention = CachedAttention(d_model, num_heads)
        self.up, self.down = (
            nn.Linear(d_model, 4 * d_model),
            nn.Linear(4 * d_model, d_model),
        )
        self.norm1, self.norm2 = nn.LayerNorm(d_model), nn.LayerNorm(d_model)

    def forward(self, x, cache):
        y, cache = self.attention(self.norm1(x), cache)
        x = x + y
        return x + self.down(F.gelu(self.up(self.norm2(x)))), cache


class CachedGPT(nn.Module):
    def __init__(self, vocab_size, d_model, num_heads, num_layers, max_length):
        super().__init__()
        self.tokens = nn.Embedding(vocab_size, d_model)
        self.positions = nn.Embedding(max_length, d_model)
        nn.init.normal_(self.tokens.weight, std=0.02)
        nn.init.normal_(self.positions.weight, std=0.02)
        self.blocks = nn.ModuleList(Block(d_model, num_heads) for _ in range(num_layers))
        self.norm = nn.LayerNorm(d_model)

    def forward(self, ids, caches=None):  # ids (B, T): new tokens only
        start = 0 if caches is None else caches[0][0].shape[2]
        positions = torch.arange(start, start + ids.shape[1], device=ids.device)
        x = self.tokens(ids) + self.positions(positions)  # IndexError: too long
        kept = []
        for n, block in enumerate(self.blocks):
            x, cache = block(x, None if caches is None else caches[n])
            kept.append(cache)
        return self.norm(x) @ self.tokens.weight.T, kept  # logits (B, T, V)


@torch.no_grad()
def write(model, ids, count, temperature=1.0, top_p=1.0, end=None, generator=None):
    """Append up to `count` tokens to ids (B, T); temperature 0 means greedy."""
    logits, caches = model(ids)  # prefill: the whole prompt in one pass
    ended = torch.zeros(len(ids), dtype=torch.bool, device=ids.device)
    for n in range(count):
        last = logits[:, -1]  # (B, V)
        if temperature == 0:
            new = last.argmax(dim=-1, keepdim=True)  # (B, 1)
        else:
            shares, order = (last / temperature).softmax(-1).sort(descending=True)
            if top_p < 1:
                shares[shares.cumsum(-1) - shares >= top_p] = 0
            new = order.gather(1, torch.multinomial(shares, 1, generator=generator))
        ids = torch.cat([ids, new], dim=1)
        if end is not None:
            ended |= new[:, 0] == end  # what follows the end of a row is junk
        if n + 1 == count or ended.all():
            break
        logits, caches = model(new, caches)  # one token
    return ids


if __name__ == "__main__":
    torch.manual_seed(0)
    gpt = CachedGPT(100, d_model=64, num_heads=4, num_layers=3, max_length=64).eval()
    prompts = torch.randint(100, (2, 10))
    for temperature in 0, 1:
        draw = torch.Generator().manual_seed(0)
        texts = write(gpt, prompts, 20, temperature, top_p=0.9, generator=draw)
        print(f"temperature {temperature}:", *texts[0, 10:].tolist())
    at_once, _ = gpt(texts)  # without a cache
    logits, caches = gpt(texts[:, :10])
    steps = [logits]
    for t in range(10, 30):
        logits, caches = gpt(texts[:, t : t + 1], caches)
        steps.append(logits)
    apart = (torch.cat(steps, dim=1) - at_once).abs().max()
    print(f"prefill of 10 and 20 steps, against one pass: {apart:.0e} apart")
    assert apart < 1e-4
