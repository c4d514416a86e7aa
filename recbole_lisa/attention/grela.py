"""Gated rotary linear attention (RecGRELA, arXiv 2506.13315), made causal."""

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import silu

from recbole_lisa.attention.base import apply_layer, empty_state
from recbole_lisa.attention.linear import positive_features
from recbole_lisa.attention.recurrent import WIDTH, ChannelConvolution, RecurrentAttention
from recbole_lisa.ops.recurrences import selective_recurrence


class RotaryState(NamedTuple):
    """S (N, H, P, P), z (N, D), the convolution's newest inputs (N, 3, D) and the number of items (N,)."""

    products: Tensor
    mass: Tensor
    recent: Tensor
    position: Tensor


class GatedRotaryAttention(RecurrentAttention):
    r"""W_o ((attended + silu(convolution of v)) * silu(W_g x)),   v = W_v x,   [q, k] = elu(W v) + 1.

        attended_i = S_i (R_i q_i) / (z_i q_i),   S_i = sum_{j<=i} v_j (R_j k_j)^T,   z_i = sum_{j<=i} k_j

    R_i turns pairs of features by i times the pair's angle (RoPE), so that a product depends on the distance. H heads
    of width P = D / H, O(L D^2). In the published layer S and z run over the whole window, later items and padding
    included; here they end at i. Twice n_heads must divide D.
    """

    def __init__(self, *, hidden_size: int, n_heads: int = 4) -> None:
        super().__init__(hidden_size)
        if n_heads < 1 or hidden_size % (2 * n_heads):
            raise ValueError(f"twice n_heads must divide hidden_size {hidden_size}, got n_heads {n_heads}")
        self.n_heads = n_heads
        self.value, self.gate, self.output = (nn.Linear(hidden_size, hidden_size) for _ in range(3))
        self.query_key = nn.Linear(hidden_size, 2 * hidden_size)
        self.convolution = ChannelConvolution(hidden_size)

    def init_state(self, n: int) -> RotaryState:
        """The empty history of n users."""
        width, size = self.hidden_size, self.hidden_size // self.n_heads
        shapes = (self.n_heads, size, size), (width,), (WIDTH - 1, width), ()
        return RotaryState(*(empty_state(self.value.bias, n, *shape) for shape in shapes))

    def run(self, state: RotaryState, x: Tensor, valid: Tensor) -> tuple[Tensor, RotaryState]:
        """Append x (N, L, D), valid (N, L); see RecurrentAttention."""
        value = apply_layer(self.value, x)
        mixed, recent = self.convolution(state.recent, value, valid)
        features = positive_features(self.query_key(value)).to(state.mass.dtype) * valid.unsqueeze(-1)  # (N, L, 2 D)
        with torch.autocast(x.device.type, enabled=False):
            (q, k), (r, turned) = features.chunk(2, dim=-1), self._rotated(features, state.position).chunk(2, dim=-1)
            mass = state.mass.unsqueeze(1) + k.cumsum(dim=1)  # (N, L, D)
            operands = q * mass, value.to(mass.dtype), turned, r
            z, v, k, q = (y.view(*y.shape[:2], self.n_heads, -1).transpose(1, 2).flatten(0, 1) for y in operands)
            total = z.sum(dim=-1, keepdim=True)  # (N H, L, 1)
            products = state.products.flatten(0, 1).unsqueeze(1)  # (N H, 1, P, P)
            sums, products = selective_recurrence(products, torch.zeros_like(total), v.unsqueeze(2), k, q)
            attended = sums.squeeze(2) / total.clamp_min(torch.finfo(total.dtype).tiny)  # (N H, L, P)
        attended = attended.to(x.dtype).view(len(x), self.n_heads, x.shape[1], -1).transpose(1, 2).flatten(2)
        out = self.project((attended + silu(mixed)) * silu(self.gate(x)))
        return out, RotaryState(products.view_as(state.products), mass[:, -1], recent, state.position + valid.sum(1))

    def _rotated(self, features: Tensor, start: Tensor) -> Tensor:
        """Pair p of q and of k (N, L, 2 D) turned by (start + t) 10000^(-2 p / D), start (N,)."""
        width, positions = self.hidden_size, torch.arange(features.shape[1], device=start.device)
        rate = 10000.0 ** (-torch.arange(0, width, 2, device=start.device).double() / width)  # (D / 2,)
        angles = start.double().outer(rate), positions.double().outer(rate)
        first, later = (torch.polar(torch.ones_like(y), y) for y in angles)
        pairs = torch.view_as_complex(features.view(*features.shape[:2], 2, -1, 2))  # (N, L, 2, D / 2)
        return torch.view_as_real(pairs * (first.unsqueeze(1) * later).unsqueeze(2).to(pairs.dtype)).flatten(2)
