"""Mamba-2's layer (Dao and Gu, 2024) in plain torch: a linear recurrence whose decay depends on the input."""

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import silu, softplus

from recbole_lisa.attention.base import empty_state
from recbole_lisa.attention.recurrent import WIDTH, ChannelConvolution, RecurrentAttention
from recbole_lisa.ops.checks import check_sizes
from recbole_lisa.ops.recurrences import FASTEST, LOG_FASTEST, selective_recurrence


class SelectiveState(NamedTuple):
    """A whole history at constant size: S (N, H, P, S), and the convolution's newest inputs (N, 3, E + 2 S)."""

    matrices: Tensor
    recent: Tensor


class SelectiveSSM(RecurrentAttention):
    r"""W_o RMSNorm(y * silu(z)) with a scalar decay a head, O(L D (D + S)).

        [z, (x, b, c), t] = W_i input,   (x, b, c) = silu(convolution of 4 positions),   dt = softplus(t + t_0)
        S_t = exp(-dt A) S_{t-1} + dt x_t b_t^T,   y_t = S_t c_t + d x_t

    x has E = 2 D numbers in H heads; b and c have S numbers, shared by the heads. A starts in [1, 16] and dt in
    [.001, .1], as published. Deviations from the CUDA package: chunks of at most 24 positions, one group of b and c.
    state_size is S; n_heads must divide 2 D.
    """

    def __init__(self, *, hidden_size: int, n_heads: int = 4, state_size: int = 32) -> None:
        super().__init__(hidden_size)
        check_sizes(state_size=state_size)
        if n_heads < 1 or 2 * hidden_size % n_heads:
            raise ValueError(f"n_heads must divide 2 hidden_size {2 * hidden_size}, got {n_heads}")
        self.parts = [2 * hidden_size, state_size, state_size]  # x, b, c
        self.input = nn.Linear(hidden_size, 2 * hidden_size + sum(self.parts) + n_heads, bias=False)
        self.convolution = ChannelConvolution(sum(self.parts))
        self.log_decay = nn.Parameter(torch.empty(n_heads).uniform_(1, 16).log())
        self.step_bias = nn.Parameter(torch.empty(n_heads).uniform_(math.log(1e-3), math.log(0.1)).exp().expm1().log())
        self.skip = nn.Parameter(torch.ones(n_heads))
        self.norm = nn.RMSNorm(2 * hidden_size, eps=1e-5)
        self.output = nn.Linear(2 * hidden_size, hidden_size, bias=False)

    def init_state(self, n: int) -> SelectiveState:
        """The empty history of n users."""
        n_heads, (width, size, _) = len(self.skip), self.parts
        shapes = (n_heads, width // n_heads, size), (WIDTH - 1, sum(self.parts))
        return SelectiveState(*(empty_state(self.skip, n, *shape) for shape in shapes))

    def run(self, state: SelectiveState, x: Tensor, valid: Tensor) -> tuple[Tensor, SelectiveState]:
        """Append x (N, L, D), valid (N, L); see RecurrentAttention."""
        gate, mixed, t = torch.split(self.input(x), [self.parts[0], sum(self.parts), len(self.skip)], dim=-1)
        mixed, recent = self.convolution(state.recent, mixed, valid)
        with torch.autocast(x.device.type, enabled=False):
            dtype = state.matrices.dtype
            dt = softplus(t.to(dtype) + self.step_bias) * valid.unsqueeze(-1)  # (N, L, H); 0 leaves S as it is
            flat, b, c = torch.split(silu(mixed.to(dtype)), self.parts, dim=-1)
            v = flat.view(*dt.shape, -1)  # (N, L, H, P)
            a = (-dt * self.log_decay.clamp_max(LOG_FASTEST).exp()).clamp_min(-FASTEST)
            y, matrices = selective_recurrence(state.matrices, a, dt.unsqueeze(-1) * v, b, c)
            y = torch.addcmul(y, self.skip.unsqueeze(-1).to(dtype), v).flatten(2).to(x.dtype)  # (N, L, E)
        return self.project(self.norm(y * silu(gate))), SelectiveState(matrices, recent)
