"""Causal softmax attention over the last w positions, without an (L, L) tensor.

a[i, j] = softmax over j in i-w+1..i of (q_i . k_j / sqrt(E) + bias[i - j]),    out_i = sum_j a[i, j] v_j
"""

import math

import torch
from torch import Tensor
from torch.nn.functional import pad

from recbole_lisa.ops.checks import check_operands

SMALLEST_BLOCK = 16
"""Queries of a block at least: smaller matrix products take as long."""


def banded_attention(query: Tensor, key: Tensor, value: Tensor, bias: Tensor) -> Tensor:
    """Attention over the last w positions, O(L w E) time and O(L w) memory.

    A block of S = max(w, SMALLEST_BLOCK) queries reads the keys of its own positions and of the w before them. query,
    key, value and the result are (N, L, H, E); bias (H, w) is added by the age of a key, 0 is the position itself. A w
    above L costs as much as L.
    """
    forms = "query: N L+ H E; key: N L H E; value: N L H E; bias: floating-point H w+"
    check_operands(forms, query, key, value, bias)
    n, length, n_heads, width = query.shape
    bias = bias[:, :length]  # no key is older
    window = bias.shape[1]
    size = max(window, SMALLEST_BLOCK)
    n_blocks = -(-length // size)

    def blocks(x: Tensor, before: int = 0) -> Tensor:
        """(N, L, H, E) -> (N blocks, H, before + S, E): each block after the `before` positions in front of it."""
        x = pad(x, (0, 0, 0, 0, 0, n_blocks * size - length)).view(n, n_blocks, size, n_heads, width)
        if before:
            x = torch.cat([pad(x[:, :-1, -before:], (0, 0, 0, 0, 0, 0, 1, 0)), x], dim=2)
        return x.flatten(0, 1).transpose(1, 2)  # torch.compile takes attention over 5 dimensions for one over 4

    logits = blocks(query / math.sqrt(width)) @ blocks(key, window).transpose(2, 3)  # (N blocks, H, S, w + S)
    logits = logits.view(n, n_blocks, *logits.shape[1:])
    columns = torch.arange(window + size, device=bias.device)
    age = torch.arange(size, device=bias.device).unsqueeze(1) + window - columns  # (S, w + S)
    band = bias[:, age.clamp(0, window - 1)].masked_fill((age < 0) | (age >= window), -torch.inf)  # (H, S, w + S)
    first = band.masked_fill(columns < window, -torch.inf)  # no position is before that of index 0
    weights = torch.softmax(logits + torch.stack([first, *[band] * (n_blocks - 1)]), dim=-1)
    attended = weights.to(value.dtype).flatten(0, 1) @ blocks(value, window)
    return attended.transpose(1, 2).reshape(n, n_blocks * size, n_heads, width)[:, :length]
