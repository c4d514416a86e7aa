"""Sums of all earlier entries, computed without the later ones."""

import torch
from torch import Tensor


def sums_before(x: Tensor) -> Tensor:
    """Sum of all entries before each one: out_u = x_0 + ... + x_{u-1}, 0 for the first; x (N, U, ...).

    cumsum(x) - x would leave the rounding of x_u in the sum before it.
    """
    return torch.cat([torch.zeros_like(x[:, :1]), x[:, :-1]], dim=1).cumsum(dim=1)
