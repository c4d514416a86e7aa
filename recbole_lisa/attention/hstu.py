"""Hierarchical sequential transduction unit (HSTU, Zhai et al., 2024): pointwise attention with a gate."""

import torch
from torch import Tensor, nn
from torch.nn.functional import silu
from torch.utils.checkpoint import checkpoint

from recbole_lisa.attention.base import Attention, apply_layer, final_positions, take_positions
from recbole_lisa.ops.checks import check_sizes

BLOCK = 256
"""Queries of a block. Where there are several, the backward pass computes their weights again: O(L) memory."""


class HSTUAttention(Attention):
    r"""W_o (LayerNorm(sum_{j<=i} silu(q_i k_j^T + r_{i-j}) v_j / n) * u_i),   [u, v, q, k] = silu(W x).

    Exact, O(L^2 D). No softmax: the sum grows with the number of similar items. n = max_length, so that padding changes
    nothing; longer sequences work, too. r is one number a distance, shared by the heads and by distances from n - 1 on.
    Not here: a bias by time.
    """

    compiles = False

    def __init__(self, *, hidden_size: int, max_length: int, n_heads: int = 1) -> None:
        super().__init__(hidden_size)
        check_sizes(max_length=max_length)
        if n_heads < 1 or hidden_size % n_heads:
            raise ValueError(f"n_heads must divide hidden_size {hidden_size}, got {n_heads}")
        self.n_heads = n_heads
        self.input = nn.Linear(hidden_size, 4 * hidden_size, bias=False)
        self.distance_bias = nn.Parameter(torch.randn(max_length) * 0.02)
        self.norm = nn.LayerNorm(hidden_size, eps=1e-6, elementwise_affine=False)
        self.output = nn.Linear(hidden_size, hidden_size)

    def everywhere(self, x: Tensor, valid: Tensor) -> Tensor:
        """Attend at every position: x (N, L, D), valid (N, L) -> (N, L, D)."""
        gate, value, query, key = silu(self.input(x)).chunk(4, dim=-1)
        attend = self._attend if x.shape[1] <= BLOCK else lambda *y: checkpoint(self._attend, *y, use_reentrant=False)
        blocks, position = [], torch.arange(x.shape[1], device=x.device)
        for start in range(0, x.shape[1], BLOCK):
            end = start + BLOCK
            blocks.append(attend(query[:, start:end], key[:, :end], value[:, :end], position[start:end]))
        return self.project(torch.cat(blocks, dim=1) * gate)

    def at_last(self, x: Tensor, valid: Tensor) -> Tensor:
        """Attend at the final item only, O(L D^2): x (N, L, D), valid (N, L) -> (N, D)."""
        gate, value, query, key = silu(self.input(x)).chunk(4, dim=-1)
        final = final_positions(valid)
        attended = self._attend(take_positions(query, final).unsqueeze(1), key, value, final.view(-1, 1, 1))
        return self.project(attended.squeeze(1) * take_positions(gate, final))

    def _attend(self, query: Tensor, key: Tensor, value: Tensor, position: Tensor) -> Tensor:
        """Normed sums (N, R, D) for queries (N, R, D) at positions (..., R) over keys and values (N, J, D)."""
        distance = position.unsqueeze(-1) - torch.arange(key.shape[1], device=key.device)  # (..., R, J)
        q, k, v = (y.view(*y.shape[:2], self.n_heads, -1).transpose(1, 2) for y in (query, key, value))
        logits = q @ k.transpose(2, 3) + self.distance_bias[distance.clamp(0, len(self.distance_bias) - 1)]
        attended = silu(logits).masked_fill(distance < 0, 0.0) @ v / len(self.distance_bias)
        return apply_layer(self.norm, attended.transpose(1, 2).flatten(2))
