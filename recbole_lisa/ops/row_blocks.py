"""Chooses the best option of each row, for a few rows at a time: the options of all rows never exist at once."""

from collections.abc import Callable

import torch
from torch import Tensor

from recbole_lisa.ops.checks import can_read

BLOCK_NUMBERS = 2**18
"""Options that exist at once: 1 MiB in float32, which fits a cache."""


def choose_in_blocks(choose: Callable[[Tensor], Tensor], rows: Tensor, n_options: int) -> Tensor:
    """choose(rows), a block of rows (M, ...) at a time, without gradients: (M, ...).

    choose takes rows (m, ...) and returns (m, ...); a choice is one of n_options and depends on its row only.
    """
    with torch.no_grad():
        first, *others = torch.split(rows, max(BLOCK_NUMBERS // max(n_options, 1), 1))
        chosen = choose(first)
        if not others:
            return chosen
        # Not torch.cat: small results that are kept would cut up the memory that each block frees.
        out = chosen.new_empty(len(rows), *chosen.shape[1:])
        out[: len(first)] = chosen
        for number, block in enumerate(others, 1):
            out[number * len(first) :][: len(block)] = choose(block)
        return out


def largest(scores: Tensor) -> Tensor:
    """scores (..., W) -> (...) int64, the first of the largest numbers of each row, as torch's argmax.

    NumPy's argmax reads several numbers at once, torch's on the CPU one: it takes nine times as long at W = 128.
    """
    if can_read(scores) and scores.dtype in (torch.float32, torch.float64):
        return torch.as_tensor(scores.detach().numpy().argmax(axis=-1))
    return scores.argmax(dim=-1)
