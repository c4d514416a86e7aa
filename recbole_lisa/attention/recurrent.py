"""Mechanisms that are one function of a state and of the items after it, and a short convolution for them."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d

from recbole_lisa.attention.base import Attention, Input, zero_padding
from recbole_lisa.ops.quantize import Quantized

WIDTH = 4
"""Positions that an output of the convolution sees: its own and the three before it, as published."""


class RecurrentAttention(Attention):
    """Attention whose subclass implements init_state() and run(); everywhere, step and state_of follow from them."""

    compiles = False
    has_state = True

    def run(self, state: Any, x: Tensor, valid: Tensor) -> tuple[Tensor, Any]:
        """Append x (N, L, D), valid (N, L) to N histories, in the state's type: outputs (N, L, D), state afterwards."""
        raise NotImplementedError

    def everywhere(self, x: Tensor, valid: Tensor) -> Tensor:
        """Attend at every position: x (N, L, D), valid (N, L) -> (N, L, D)."""
        return self.run(self.init_state(len(x)), x, valid)[0]

    def step(
        self, state: Any, x: Tensor | Quantized, time_gap: Tensor | None = None, vectors: Tensor | None = None
    ) -> tuple[Tensor, Any]:
        """Append one vector to each user's history; see Attention."""
        self.check_step(state, x, Tensor)
        assert isinstance(x, Tensor)
        out, after = self.run(state, x.unsqueeze(1), torch.ones(len(x), 1, dtype=torch.bool, device=x.device))
        return out.squeeze(1), after

    def state_of(self, x: Input, valid: Tensor, time_gaps: Tensor | None = None) -> Any:
        """The state after whole sequences; see Attention."""
        empty = self.init_state(len(valid))
        exact = type(empty)(*(part.double() for part in empty))
        return self.run(exact, zero_padding(self.checked_vectors(x, valid), valid), valid)[1]


class ChannelConvolution(nn.Module):
    """y_t = b + sum_{s < 4} w_s x_{t-s} for each of C channels, causal."""

    def __init__(self, n_channels: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(n_channels, 1, 1, WIDTH).uniform_(-0.5, 0.5))
        self.bias = nn.Parameter(torch.zeros(n_channels))

    def forward(self, recent: Tensor, x: Tensor, valid: Tensor) -> tuple[Tensor, Tensor]:
        """x (N, L, C), valid (N, L) after the three inputs recent (N, 3, C) -> y (N, L, C), and recent afterwards."""
        inputs = torch.cat([recent.to(x.dtype), x], dim=1)
        columns = inputs.transpose(1, 2).unsqueeze(2)  # (N, C, 1, L + 3): conv2d takes half the time of conv1d
        out = conv2d(columns, self.weight, self.bias, groups=len(self.bias)).squeeze(2).transpose(1, 2)
        newest = valid.sum(dim=1, keepdim=True) + torch.arange(WIDTH - 1, device=x.device)  # (N, 3) of L + 3
        return out, inputs.gather(1, newest.unsqueeze(-1).expand(-1, -1, x.shape[-1])).to(recent.dtype)
