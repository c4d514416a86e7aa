"""Inner products of each row with a few rows of a table; the gathered rows exist a block at a time."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from recbole_lisa.ops.checks import check_operands, differentiable_once
from recbole_lisa.ops.numba_threads import arrays, check_rows, cut_rows, numba_serves, writable

BLOCK_ELEMENTS = {"cpu": 2**19, "cuda": 2**26}
"""Entries of the gathered (rows, R, D) block: 2 MB in float32, near the cache, and 256 MB on a GPU."""


def pair_scores(hidden: Tensor, table: Tensor, index: Tensor) -> Tensor:
    """Compute s[m, r] = hidden[m] . table[index[m, r]]: hidden (M, D), table (U, D), index (M, R) integers -> (M, R).

    In the wider type of hidden and table; differentiable once in both.

    Raises:
        ValueError: the shapes do not fit.
        IndexError: an index is not in 0..U-1.
    """
    check_operands("hidden: floating-point M D; table: floating-point U D; index: integer M R", hidden, table, index)
    check_rows(index, len(table), "index")
    index = index if index.dtype in (torch.int32, torch.int64) else index.long()
    dtype = torch.promote_types(hidden.dtype, table.dtype)
    with torch.autocast(hidden.device.type, enabled=False):
        scores: Tensor = _PairScores.apply(hidden.to(dtype), table.to(dtype), index)  # type: ignore[no-untyped-call]  # torch's Function carries no types
    return scores


def _blocks(table: Tensor, index: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """Blocks of rows, and the rows of the table that they index, (rows, R, D)."""
    most = BLOCK_ELEMENTS["cpu" if table.device.type == "cpu" else "cuda"]
    for rows in cut_rows(len(index), max(index.shape[1] * table.shape[1], 1), most):
        part = index[rows]
        yield rows, table.index_select(0, part.flatten()).view(*part.shape, table.shape[1])


class _PairScores(torch.autograd.Function):
    """The backward pass gathers each block again, so no (M, R, D) tensor is kept."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, table: Tensor, index: Tensor) -> Tensor:
        ctx.save_for_backward(hidden, table, index)
        scores = hidden.new_empty(index.shape)
        for rows, gathered in _blocks(table, index):
            scores[rows] = (gathered @ hidden[rows].unsqueeze(-1)).squeeze(-1)
        return scores

    @staticmethod
    @differentiable_once
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        """Gradients by hidden and table."""
        hidden, table, index = ctx.saved_tensors
        if index.numel() and hidden.shape[1] and numba_serves(hidden, table, grad):
            from recbole_lisa.ops.pair_kernels import UndoScores, undo_scores

            d_hidden, d_table = hidden.new_zeros(hidden.shape), table.new_zeros(table.shape)
            read = arrays(hidden=hidden, table=table, index=index.long(), grad=grad)
            undo_scores(hidden.shape[1], UndoScores(**read, **writable(d_hidden=d_hidden, d_table=d_table)))
            return d_hidden, d_table, None
        d_hidden, d_table = torch.empty_like(hidden), torch.zeros_like(table)
        with torch.autocast(hidden.device.type, enabled=False):
            for rows, gathered in _blocks(table, index):
                d_hidden[rows] = (grad[rows].unsqueeze(1) @ gathered).squeeze(1)
                d_gathered = torch.mul(grad[rows].unsqueeze(-1), hidden[rows].unsqueeze(1), out=gathered)
                d_table.index_add_(0, index[rows].flatten(), d_gathered.flatten(0, 1))
        return d_hidden, d_table, None
