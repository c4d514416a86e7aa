"""Inner products of each row with a few rows of a table, without the gathered rows in memory."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from recbole_lisa.ops.numba_threads import arrays, check_rows, loops_serve, share, targets

BLOCK_ELEMENTS = {"cpu": 2**19, "cuda": 2**26}
"""Entries of the gathered (rows, R, D) block: 1 MB in float32, near the cache, and 256 MB on a GPU."""


def pair_scores(hidden: Tensor, table: Tensor, index: Tensor) -> Tensor:
    """s[m, r] = hidden[m] . table[index[m, r]].

    Args:
        hidden: (M, D).
        table: (U, D).
        index: (M, R) rows of the table.

    Returns:
        (M, R). Compiled loops do the work on the CPU; elsewhere, or without Numba, the gathered (M, R, D) tensor exists
        one block at a time, here and in the backward pass.
    """
    dtype = torch.promote_types(hidden.dtype, table.dtype)
    with torch.autocast(hidden.device.type, enabled=False):
        scores: Tensor = _PairScores.apply(hidden.to(dtype), table.to(dtype), index)  # type: ignore[no-untyped-call]  # torch's Function carries no types
    return scores


def _blocks(table: Tensor, index: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """Blocks of rows and the table's rows that they look at, (rows, R, D)."""
    most = BLOCK_ELEMENTS["cpu" if table.device.type == "cpu" else "cuda"]
    rows = max(most // max(index.shape[1] * table.shape[1], 1), 1)
    for first in range(0, index.shape[0], rows):
        part = index[first : first + rows]
        yield slice(first, first + rows), table.index_select(0, part.flatten()).view(*part.shape, -1)


class _PairScores(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, table: Tensor, index: Tensor) -> Tensor:
        ctx.save_for_backward(hidden, table, index)
        scores = hidden.new_empty(index.shape)
        if _loops_serve(hidden, index):
            from recbole_lisa.ops.numba_threads.encoder import score, score_in_parts

            check_rows(index, len(table))
            share(score, score_in_parts, index.shape[0], *arrays(hidden, table, index), *targets(scores))
            return scores
        for rows, gathered in _blocks(table, index):
            scores[rows] = (gathered @ hidden[rows].unsqueeze(-1)).squeeze(-1)
        return scores

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        """Gradients by hidden and table."""
        hidden, table, index = ctx.saved_tensors
        d_hidden, d_table = torch.empty_like(hidden), torch.zeros_like(table)
        if _loops_serve(hidden, index):
            from recbole_lisa.ops.numba_threads.encoder import undo_score, undo_score_in_parts

            d_hidden = torch.empty_like(hidden, memory_format=torch.contiguous_format)
            d_table = torch.zeros_like(table, memory_format=torch.contiguous_format)
            read, written = arrays(hidden, table, index, grad), targets(d_hidden, d_table)
            share(undo_score, undo_score_in_parts, hidden.shape[1], *read, *written)
            return d_hidden, d_table, None
        with torch.autocast(hidden.device.type, enabled=False):
            for rows, gathered in _blocks(table, index):
                d_hidden[rows] = (grad[rows].unsqueeze(1) @ gathered).squeeze(1)
                d_gathered = torch.mul(grad[rows].unsqueeze(-1), hidden[rows].unsqueeze(1), out=gathered)
                d_table.index_add_(0, index[rows].flatten(), d_gathered.flatten(0, 1))
        return d_hidden, d_table, None


def _loops_serve(hidden: Tensor, index: Tensor) -> bool:
    return index.numel() > 0 and hidden.shape[1] > 0 and loops_serve(hidden)
