"""Choices made for a few rows at a time, so that what they are chosen from never exists for all."""

from collections.abc import Callable

import torch
from torch import Tensor

BLOCK_NUMBERS = 2**18
"""Numbers to choose from that exist at once: 1 MiB in float32, which a cache holds."""


def choose_in_blocks(choose: Callable[[Tensor], Tensor], rows: Tensor, n_options: int) -> Tensor:
    """choose(rows), a block of rows at a time, without gradients.

    Args:
        choose: (m, ...) rows -> (m, ...) choices, each row by itself.
        rows: (M, ...).
        n_options: numbers that a row is chosen from.

    Returns:
        (M, ...).
    """
    with torch.no_grad():
        blocks = torch.split(rows, max(BLOCK_NUMBERS // max(n_options, 1), 1))
        return torch.cat([choose(block) for block in blocks])
