"""Sums of what came before, into which nothing later enters, not even to be taken out again."""

import torch
from torch import Tensor


def sums_before(x: Tensor) -> Tensor:
    """Sum of all entries before each one: out_u = x_0 + ... + x_{u-1}, 0 for the first.

    Not cumsum(x) - x, in which the rounding of x_u stays behind: a large one would move the sum before it.

    Args:
        x: (N, U, ...).

    Returns:
        As x.
    """
    return torch.cat([torch.zeros_like(x[:, :1]), x[:, :-1]], dim=1).cumsum(dim=1)
