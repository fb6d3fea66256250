"""PyTorch's own attention, encoder and decoder: their parameters under the names of ours, for comparing them."""

from torch import Tensor, nn


def our_state_dict(theirs: nn.Module) -> dict[str, Tensor]:
    """Return the parameters of PyTorch's MultiheadAttention, encoder or decoder (or layer), under our names.

    Ours takes them with `load_state_dict`; its stacks need `final_norm` where theirs has a norm.
    """
    state = theirs.state_dict()
    cross = any("multihead_attn" in name for name in state)  # a decoder
    attention = "self_attention" if cross else "attention"
    renamed = {
        "self_attn.": f"{attention}.",
        "multihead_attn.": "cross_attention.",
        "linear1.": "feed_forward.up.",
        "linear2.": "feed_forward.down.",
        "norm1.": f"{attention}_add_norm.norm.",
        "norm2.": f"{'cross_attention' if cross else 'feed_forward'}_add_norm.norm.",
        "norm3.": "feed_forward_add_norm.norm.",
        "out_proj.": "w_o.",
    }
    ours: dict[str, Tensor] = {}
    for name, tensor in state.items():
        for old, new in renamed.items():
            name = name.replace(old, new)
        if "in_proj_" in name:
            for projection, part in zip(("w_q.", "w_k.", "w_v."), tensor.chunk(3), strict=True):
                ours[name.replace("in_proj_", projection)] = part
        else:
            ours[name] = tensor
    return ours
