"""Linear recurrent unit (LRURec, Yue et al., 2024): a diagonal complex recurrence in the place of attention."""

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

from recbole_lisa.attention.base import empty_state, final_positions
from recbole_lisa.attention.recurrent import RecurrentAttention
from recbole_lisa.ops.recurrences import LOG_FASTEST, diagonal_recurrence


class DiagonalState(NamedTuple):
    """A whole history at constant size: the parts of h, (N, H) each."""

    real: Tensor
    imaginary: Tensor


class LinearRecurrentUnit(RecurrentAttention):
    r"""y_t = Re(C h_t) + d * x_t over a diagonal complex recurrence, O(L D^2).

        h_t = lambda h_{t-1} + gamma (B x_t + b),   |lambda| = exp(-exp(nu)),   gamma = sqrt(1 - |lambda|^2)

    H = 2 D; |lambda| starts in [.8, .99] as published. Deviations: d is learnt, gamma is not but follows lambda.
    """

    def __init__(self, *, hidden_size: int) -> None:
        super().__init__(hidden_size)
        width = 2 * hidden_size
        squared = torch.empty(width).uniform_(0.8**2, 0.99**2)
        self.log_decay = nn.Parameter((-0.5 * squared.log()).log())  # nu
        self.angle = nn.Parameter(torch.rand(width) * 2 * math.pi)
        self.input = nn.Linear(hidden_size, 2 * width)  # the real parts of B, then the imaginary parts
        self.output = nn.Linear(2 * width, hidden_size)
        self.skip = nn.Parameter(torch.ones(hidden_size))
        nn.init.normal_(self.input.weight, std=(2 * hidden_size) ** -0.5)
        nn.init.normal_(self.output.weight, std=width**-0.5)

    def init_state(self, n: int) -> DiagonalState:
        """The empty history of n users."""
        return DiagonalState(*(empty_state(self.angle, n, len(self.angle)) for _ in range(2)))

    def run(self, state: DiagonalState, x: Tensor, valid: Tensor) -> tuple[Tensor, DiagonalState]:
        """Append x (N, L, D), valid (N, L); see RecurrentAttention."""
        decay = self.log_decay.to(state.real.dtype).clamp_max(LOG_FASTEST).exp()  # (H,)
        angle = self.angle.to(state.real.dtype)
        gamma = (-torch.expm1(-2 * decay)).sqrt().repeat(2).unsqueeze(1).to(x.dtype)  # (2 H, 1)
        drive = torch.addmm(gamma * self.input.bias.unsqueeze(1), gamma * self.input.weight, x.flatten(0, 1).t())
        u = torch.complex(*drive.to(state.real.dtype).view(2, -1, *valid.shape))  # (H, N, L)
        h = diagonal_recurrence(torch.complex(*state).t(), decay, angle, u)
        y = self.project(torch.cat([h.real, h.imag]).flatten(1).t().to(x.dtype))
        last = h[:, torch.arange(len(x), device=x.device), final_positions(valid)].t()  # (N, H)
        return y.view(x.shape) + self.skip * x, DiagonalState(last.real, last.imag)
