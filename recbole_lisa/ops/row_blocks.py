"""Chooses for a few rows at a time, so the options of all rows never exist at once."""

from collections.abc import Callable

import torch
from torch import Tensor

BLOCK_NUMBERS = 2**18
"""Options that exist at once: 1 MiB in float32, which fits a cache."""


def choose_in_blocks(choose: Callable[[Tensor], Tensor], rows: Tensor, n_options: int) -> Tensor:
    """choose(rows), a block of rows at a time, without gradients.

    Args:
        choose: (m, ...) rows -> (m, ...) choices; a choice depends on its row only.
        rows: (M, ...).
        n_options: options of a row.

    Returns:
        (M, ...).
    """
    with torch.no_grad():
        blocks = torch.split(rows, max(BLOCK_NUMBERS // max(n_options, 1), 1))
        return torch.cat([choose(block) for block in blocks])
