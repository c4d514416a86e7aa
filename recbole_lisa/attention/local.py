"""Exact attention over the newest items, which LISA adds to its histogram of the whole history."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from recbole_lisa.attention.base import apply_layer, take_newest
from recbole_lisa.ops.banded_attention import banded_attention
from recbole_lisa.ops.checks import check_sizes


class LocalAttention(nn.Module):
    """Causal softmax attention over the last w items, with a gate.

        a[i, j] = softmax over the last w items j of (q_i . k_j / sqrt(D / H) + bias[i - j])
        attended_i = sum_j a[i, j] v_j,    gate_i = sigmoid(W_g x_i + b_g)
        q, k, v = W x + b, each with its own matrix (D, D), x the residual stream

    O(L w D + L D^2) time, and a state of w keys and values. There is no output projection, as in LISA. hidden_size is
    D, window is w, n_heads is H.

    Raises:
        ValueError: a size is below 1, or n_heads does not divide hidden_size.
    """

    def __init__(self, hidden_size: int, *, window: int, n_heads: int = 1) -> None:
        super().__init__()
        check_sizes(local_window=window, local_heads=n_heads)
        if hidden_size % n_heads:
            raise ValueError(f"local_heads must divide hidden_size {hidden_size}, got {n_heads}")
        self.window, self.n_heads = window, n_heads
        self.projections = nn.Linear(hidden_size, 4 * hidden_size)  # query, key, value, gate
        for weight in self.projections.weight.chunk(4):
            nn.init.xavier_normal_(weight)
        nn.init.zeros_(self.projections.bias)
        self.bias = nn.Parameter(torch.zeros(n_heads, window))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Attended items and gates at every position: x (N, L, D) -> twice (N, L, D)."""
        query, key, value, gate = apply_layer(self.projections, x).chunk(4, dim=-1)
        attended = banded_attention(self._heads(query), self._heads(key), self._heads(value), self.bias)
        return attended.flatten(2), torch.sigmoid(gate)

    def state_of(self, x: Tensor, valid: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Keys and values (N, w, D) of the last items, the newest last, 0 where there is none, and their count (N,)."""
        newest, missing = take_newest(x, valid, self.window)
        _, keys, values, _ = apply_layer(self.projections, newest).chunk(4, dim=-1)  # (N, w, D)
        count = valid.sum(dim=1).clamp_max(self.window)
        return keys.masked_fill(missing, 0.0), values.masked_fill(missing, 0.0), count

    def step(self, state: Sequence[Tensor], x: Tensor) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor, Tensor]]:
        """Append one item, O(w D + D^2): a state of state_of, x (N, D) -> as forward (N, D), and the new state."""
        query, key, value, gate = apply_layer(self.projections, x).chunk(4, dim=-1)
        pairs = zip(state, (key, value), strict=False)
        keys, values = (torch.cat([old[:, 1:], new.unsqueeze(1).to(old.dtype)], dim=1) for old, new in pairs)
        count = (state[2] + 1).clamp_max(self.window)
        missing = torch.arange(self.window, 0, -1, device=x.device) > count.unsqueeze(1)  # (N, w)
        band = self.bias.flip(1).unsqueeze(1).masked_fill(missing[:, None, None], -torch.inf)  # (N, H, 1, w)
        q, k, v = (self._heads(part.to(x.dtype)).transpose(1, 2) for part in (query.unsqueeze(1), keys, values))
        attended = scaled_dot_product_attention(q, k, v, attn_mask=band)  # (N, H, 1, D / H)
        return (attended.flatten(1), torch.sigmoid(gate)), (keys, values, count)

    def _heads(self, x: Tensor) -> Tensor:
        """(..., D) -> (..., H, D / H)."""
        return x.view(*x.shape[:-1], self.n_heads, -1)
