"""Causal softmax attention over the last w positions, without an (L, L) tensor.

a[i, j] = softmax over j in i-w+1..i of (q_i . k_j / sqrt(E) + bias[i - j]),    out_i = sum_j a[i, j] v_j
"""

import math

import torch
from torch import Tensor
from torch.nn.functional import pad

SMALLEST_BLOCK = 16
"""Queries of a block at least: smaller matrix products take as long."""


def banded_attention(query: Tensor, key: Tensor, value: Tensor, bias: Tensor) -> Tensor:
    """Attention over the last w positions, O(L w E) time and O(L w) memory.

    A block of S = max(w, SMALLEST_BLOCK) queries reads the keys of its own positions and of the w before them.

    Args:
        query: (N, L, H, E).
        key: (N, L, H, E).
        value: (N, L, H, E).
        bias: (H, w), added to the score of a key by its age: 0 is the position itself.

    Returns:
        (N, L, H, E).
    """
    n, length, n_heads, width = query.shape
    window = bias.shape[1]
    size = max(window, SMALLEST_BLOCK)
    n_blocks = -(-length // size)

    def blocks(x: Tensor, before: int = 0) -> Tensor:
        """(N, L, H, E) -> (N, blocks, H, before + S, E): each block after the `before` positions in front of it."""
        x = pad(x, (0, 0, 0, 0, 0, n_blocks * size - length)).view(n, n_blocks, size, n_heads, width)
        if before:
            x = torch.cat([pad(x[:, :-1, -before:], (0, 0, 0, 0, 0, 0, 1, 0)), x], dim=2)
        return x.transpose(2, 3)

    logits = blocks(query / math.sqrt(width)) @ blocks(key, window).transpose(3, 4)  # (N, blocks, H, S, w + S)
    attended = torch.softmax(logits + _band(bias, size, n_blocks), dim=-1) @ blocks(value, window)
    return attended.transpose(2, 3).reshape(n, n_blocks * size, n_heads, width)[:, :length]


def banded_attention_of_one(query: Tensor, keys: Tensor, values: Tensor, bias: Tensor, count: Tensor) -> Tensor:
    """Attention of one query over its last w positions.

    Args:
        query: (N, H, E).
        keys: (N, w, H, E), the newest position last.
        values: (N, w, H, E).
        bias: (H, w) by age.
        count: (N,) how many of the w positions there are, at least 1; the newest ones.

    Returns:
        (N, H, E).
    """
    logits = torch.einsum("nhe,nwhe->nhw", query / math.sqrt(query.shape[-1]), keys) + bias.flip(1)
    age = torch.arange(bias.shape[1] - 1, -1, -1, device=bias.device)
    logits = logits.masked_fill((age >= count.unsqueeze(1)).unsqueeze(1), -torch.inf)
    return torch.einsum("nhw,nwhe->nhe", torch.softmax(logits, dim=-1), values)


def _band(bias: Tensor, size: int, n_blocks: int) -> Tensor:
    """What is added to the scores, (blocks, H, S, w + S): bias by age, -inf outside the band and before position 0."""
    window = bias.shape[1]
    columns = torch.arange(window + size, device=bias.device)
    age = torch.arange(size, device=bias.device).unsqueeze(1) + window - columns  # (S, w + S)
    band = bias[:, age.clamp(0, window - 1)].masked_fill((age < 0) | (age >= window), -torch.inf)
    first = band.masked_fill(columns < window, -torch.inf)
    return torch.stack([first, *[band] * (n_blocks - 1)])
