"""A short causal convolution over time before the attention of a layer."""

import torch
from torch import Tensor, nn

from recbole_lisa.attention.base import apply_layer, take_newest


class ShortConvolution(nn.Module):
    """Add the newest w items of the same channel to the residual stream h.

        x = norm(h),    out_i = h_i + sum_{k < w} weight[k] * x_{i-k},    x = 0 before the first item

    The weights start as 0. O(L w D) time, and a state of w - 1 vectors x. hidden_size is D, width is w. norm is a
    module such as a LayerNorm, or nn.Identity() where h is normalised already.

    Raises:
        ValueError: width is below 2.
    """

    def __init__(self, hidden_size: int, *, width: int, norm: nn.Module) -> None:
        super().__init__()
        if width < 2:
            raise ValueError(f"conv_width must be 0 for no convolution or at least 2, got {width}")
        self.norm = norm
        self.weight = nn.Parameter(torch.zeros(width, hidden_size))

    def forward(self, stream: Tensor) -> Tensor:
        """Residual stream (N, L, D) -> (N, L, D); a position depends on itself and on the w - 1 before it."""
        width, channels = self.weight.shape
        x = nn.functional.pad(apply_layer(self.norm, stream).transpose(1, 2), (width - 1, 0))  # (N, D, w - 1 + L)
        kernel = self.weight.flip(0).t().unsqueeze(1)  # (D, 1, w)
        return stream + nn.functional.conv1d(x, kernel, groups=channels).transpose(1, 2)

    def init_state(self, n: int) -> Tensor:
        """The state (N, w - 1, D) of n empty histories."""
        width, channels = self.weight.shape
        return self.weight.new_zeros(n, width - 1, channels)

    def state_of(self, stream: Tensor, valid: Tensor) -> Tensor:
        """The newest w - 1 vectors x of whole histories, the newest last: (N, L, D), (N, L) -> (N, w - 1, D)."""
        newest, missing = take_newest(stream, valid, len(self.weight) - 1)
        return apply_layer(self.norm, newest).masked_fill(missing, 0.0)

    def step(self, state: Tensor, stream: Tensor) -> tuple[Tensor, Tensor]:
        """Append one vector h (N, D) to a state: the output (N, D), and the new state."""
        window = torch.cat([state, apply_layer(self.norm, stream).unsqueeze(1)], dim=1)  # (N, w, D)
        return stream + (window * self.weight.flip(0)).sum(dim=1), window[:, 1:]
