"""Chooses for a few rows at a time, so the options of all rows never exist at once."""

from collections.abc import Callable

import torch
from torch import Tensor

BLOCK_NUMBERS = 2**18
"""Options that exist at once: 1 MiB in float32, which fits a cache."""


def choose_in_blocks(choose: Callable[[Tensor], Tensor], rows: Tensor, n_options: int) -> Tensor:
    """choose(rows), a block of rows (M, ...) at a time, without gradients: (M, ...).

    choose takes rows (m, ...) and returns (m, ...); a choice is one of n_options and depends on its row only.
    """
    with torch.no_grad():
        blocks = torch.split(rows, max(BLOCK_NUMBERS // max(n_options, 1), 1))
        return torch.cat([choose(block) for block in blocks])
