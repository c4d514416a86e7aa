"""Exact attention over the newest items, which LISA adds to its histogram of the whole history."""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from recbole_lisa.attention.base import apply_layer, check_sizes, final_positions
from recbole_lisa.ops.banded_attention import banded_attention, banded_attention_of_one


class Local(NamedTuple):
    """Attention over the newest items and its weight in the gated sum, each (..., D), see LocalAttention."""

    attended: Tensor
    gate: Tensor

    def mixed_with(self, other: Tensor) -> Tensor:
        """gate * attended + (1 - gate) * other: other (..., D) -> (..., D)."""
        return other + self.gate * (self.attended - other)


class LocalAttention(nn.Module):
    """Causal softmax attention over the last w items, with a gate.

        a[i, j] = softmax over the last w items j of (q_i . k_j / sqrt(D / H) + bias[i - j])
        attended_i = sum_j a[i, j] v_j,    gate_i = sigmoid(W_g x_i + b_g)
        q, k, v = W x + b, each with its own matrix (D, D), x the residual stream

    O(L w D + L D^2) time, and a state of w keys and values. There is no output projection, as in LISA.

    Args:
        hidden_size: D.
        window: w.
        n_heads: H, divides D.

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

    def forward(self, x: Tensor) -> Local:
        """Attend at every position: x (N, L, D) -> Local of (N, L, D). Padding on the right is seen by padding only."""
        query, key, value, gate = apply_layer(self.projections, x).chunk(4, dim=-1)
        attended = banded_attention(self._heads(query), self._heads(key), self._heads(value), self.bias)
        return Local(attended.flatten(2), torch.sigmoid(gate))

    def at_last(self, x: Tensor, valid: Tensor) -> Local:
        """Attend at each row's final item only, O(w D^2): x (N, L, D), valid (N, L) -> Local of (N, D)."""
        query, keys, values, gate, count = self._newest(x, valid)
        return self._attend(query[:, -1], keys, values, gate[:, -1], count.clamp_min(1))

    def state_of(self, x: Tensor, valid: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Keys and values (N, w, D) of the last items, the newest last, 0 where there is none, and their count (N,)."""
        _, keys, values, _, count = self._newest(x, valid)
        missing = (torch.arange(self.window, 0, -1, device=x.device) > count.unsqueeze(1)).unsqueeze(2)
        return keys.masked_fill(missing, 0.0), values.masked_fill(missing, 0.0), count

    def step(self, state: tuple[Tensor, Tensor, Tensor], x: Tensor) -> tuple[Local, tuple[Tensor, Tensor, Tensor]]:
        """Append one item, O(w D + D^2): a state as state_of gives it, x (N, D) -> Local of (N, D), and the state."""
        query, key, value, gate = apply_layer(self.projections, x).chunk(4, dim=-1)
        keys, values = (
            torch.cat([kept[:, 1:], new.unsqueeze(1).to(kept.dtype)], dim=1)
            for kept, new in zip(state, (key, value), strict=False)
        )
        count = (state[2] + 1).clamp_max(self.window)
        local = self._attend(query, keys.to(x.dtype), values.to(x.dtype), gate, count)
        return local, (keys, values, count)

    def _newest(self, x: Tensor, valid: Tensor) -> tuple[Tensor, ...]:
        """Query, key, value and gate (N, w, D) of the last w items, and how many of the w there are (N,)."""
        ages = torch.arange(self.window - 1, -1, -1, device=x.device)
        positions = (final_positions(valid).unsqueeze(1) - ages).clamp_min(0)  # (N, w)
        newest = x.gather(1, positions.unsqueeze(2).expand(-1, -1, x.shape[2]))  # (N, w, D)
        count = valid.sum(dim=1).clamp_max(self.window)
        return (*apply_layer(self.projections, newest).chunk(4, dim=-1), count)

    def _attend(self, query: Tensor, keys: Tensor, values: Tensor, gate: Tensor, count: Tensor) -> Local:
        """query and gate (N, D), keys and values (N, w, D), count (N,) -> Local of (N, D)."""
        attended = banded_attention_of_one(self._heads(query), self._heads(keys), self._heads(values), self.bias, count)
        return Local(attended.flatten(1), torch.sigmoid(gate))

    def _heads(self, x: Tensor) -> Tensor:
        """(..., D) -> (..., H, D / H)."""
        return x.view(*x.shape[:-1], self.n_heads, -1)
