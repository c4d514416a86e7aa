r"""LISA on the CPU, row by row: the mathematics of lisa_blocks as two compiled loops around the products with V.

The rows are all positions of all sequences, one after the other; a block of them stays in cache. Forward turns a block
into attention weights A (rows, B * W) in one pass and multiplies them by V; kept is the histogram before each part of a
block. Backward visits the blocks from last to first:

    d F_i = (d A_i - <A_i, d A_i>) exp(T[q_i]) / Z_i,    d T[q_i] += F_i d F_i
    H_i = d F_i + exp(-decay_{i+1}) H_{i+1},    d E_i = H_i,    d decay_i = -exp(-decay_i) <H_i, F_{i-1}>
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from recbole_lisa.ops.lisa.readout import score_table
from recbole_lisa.ops.numba_threads import array, arrays, check_rows, cut_rows, share, targets

BLOCK_ELEMENTS = 2**18
"""Entries of a block's (rows, B * W) buffers: 1 MB in float32."""
PARTS_OF_A_BLOCK = 8
"""What the threads share of a block, whatever their number: sums must not hang on it."""
FORGOTTEN = {torch.float32: 1e-37, torch.float64: 1e-307}
"""What has faded below is taken as 0: it could not decide anything (readout.SAFE_SPAN), and is slow to compute with."""


class _Rows(NamedTuple):
    """What the loops read, as arrays: see row_loops.lisa.weigh_rows."""

    items: Any
    query: Any
    keys: Any
    valid: Any
    fade: Any
    starts: Any
    numbers: Any


def _rows(
    items: Tensor,
    query: Tensor,
    assignment: Tensor | None,
    valid: Tensor | None,
    decay: Tensor,
    starts: Tensor,
    *,
    like: Tensor,
) -> _Rows:
    check_rows(items, len(query))
    info = torch.finfo(like.dtype)
    numbers = torch.tensor([0.0, 1.0, info.tiny, FORGOTTEN[like.dtype]], dtype=like.dtype)
    keys = _or_no_rows(assignment, like)
    here = torch.ones_like(starts) if valid is None else valid
    fade = decay.neg().exp().to(like.dtype).reshape(-1)
    return _Rows(*arrays(items.long(), query, keys, here, fade, starts, numbers))


def _or_no_rows(x: Tensor | None, like: Tensor) -> Tensor:
    """A matrix without rows for None: each type of operand, None too, would be compiled for."""
    return like.new_empty(0, 0) if x is None else x


class LoopedLISA(torch.autograd.Function):
    """apply(items, starts, query, assignment, table, values, decay, valid, span) -> (R, D), causal.

    As lisa_blocks.BlockedLISA, with scores that span no more than readout.SAFE_SPAN, and with the sequences one after
    the other: items (R,), starts (R,) true at the first row of each, decay 0-d or (R,), valid (R,) or None.
    """

    @staticmethod
    def forward(
        ctx: Any,
        items: Tensor,
        starts: Tensor,
        query: Tensor,
        assignment: Tensor | None,
        table: Tensor,
        values: Tensor,
        decay: Tensor,
        valid: Tensor | None,
        span: float,
    ) -> Tensor:
        """Weigh a block of rows, multiply by the values."""
        scores = score_table(table, span).rows  # (B * W, W)
        flat_values = values.flatten(0, 1)  # (B * W, D)
        rows = _rows(items, query, assignment, valid, decay, starts, like=values)
        out = values.new_empty(items.numel(), values.shape[-1])
        histograms = _histograms(rows, scores)
        attention = _Attention(rows, scores, histograms, table.shape[0])
        for block in attention.blocks:
            weights, _ = attention.weigh(block, histogram=None)
            torch.mm(weights, flat_values, out=out[block])
        ctx.save_for_backward(items, starts, query, assignment, scores, values, decay, valid, histograms)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients by assignment, table, values and decay."""
        from recbole_lisa.ops.lisa.numba_kernels import unweigh_rows, unweigh_rows_in_parts

        items, starts, query, assignment, scores, values, decay, valid, histograms = ctx.saved_tensors
        rows = _rows(items, query, assignment, valid, decay, starts, like=values)
        flat_values = values.flatten(0, 1)
        n_books, n_words = values.shape[0], values.shape[1]
        grad = grad_out.contiguous()
        d_values, d_scores = torch.zeros_like(flat_values), torch.zeros_like(scores)
        d_keys = values.new_zeros(assignment.shape) if ctx.needs_input_grad[3] else None
        d_fade = values.new_empty(n_books, items.numel()) if ctx.needs_input_grad[6] else None
        later = torch.zeros_like(histograms[0])
        attention = _Attention(rows, scores, histograms, n_books)
        histogram = values.new_empty(attention.blocks[0].stop, flat_values.shape[0])
        d_weights = torch.empty_like(histogram)

        def undo(start: int, *block: Tensor) -> None:
            read = (rows.items, rows.query, rows.valid, array(scores), rows.fade, rows.starts, start, rows.numbers)
            written = targets(later, _or_no_rows(d_keys, later), d_scores, _or_no_rows(d_fade, later))
            share(unweigh_rows, unweigh_rows_in_parts, n_books, *read, *arrays(*block), *written)

        with torch.autocast("cpu", enabled=False):
            for block in reversed(attention.blocks):
                size = block.stop - block.start
                weights, inverse = attention.weigh(block, histogram=histogram[:size])
                d_values.addmm_(weights.t(), grad[block])
                torch.mm(grad[block], flat_values.t(), out=d_weights[:size])
                undo(block.start, weights, inverse, histogram, attention.before(block), d_weights)
        d_decay = None
        if d_fade is not None:
            by_fade = d_fade.sum(dim=0, dtype=decay.dtype)
            d_decay = -(by_fade if decay.dim() else by_fade.sum()) * decay.neg().exp()
        d_table = d_scores.view(n_books, n_words, n_words)
        return None, None, None, d_keys, d_table, d_values.view_as(values), d_decay, None, None


def _part_rows(columns: int) -> int:
    """Rows of a part, with B * W columns."""
    return max(BLOCK_ELEMENTS // (PARTS_OF_A_BLOCK * columns), 1)


def _histograms(rows: _Rows, scores: Tensor) -> Tensor:
    """The histogram before each part of the rows, (parts, B * W); with it a part needs no other one."""
    from recbole_lisa.ops.lisa.numba_kernels import chain, sum_rows, sum_rows_in_parts

    columns = len(scores)
    part_rows = _part_rows(columns)
    n_parts = -(-len(rows.items) // part_rows)
    histograms = scores.new_zeros(n_parts, columns)
    if n_parts > 1:
        sums, factors = arrays(histograms, scores.new_empty(n_parts))
        share(sum_rows, sum_rows_in_parts, n_parts - 1, part_rows, *rows, sums, factors)
        chain(factors, rows.numbers, sums)
    return histograms


class _Attention:
    """A and 1 / Z block by block, in buffers that the blocks use in turn: fresh memory costs more than their work.

    Args:
        rows: All rows.
        scores: (B * W, W) exp(T).
        histograms: (parts, B * W) before each part.
        n_books: B.
    """

    def __init__(self, rows: _Rows, scores: Tensor, histograms: Tensor, n_books: int) -> None:
        self._part_rows = _part_rows(len(scores))
        self.blocks = cut_rows(len(rows.items), 1, self._part_rows * PARTS_OF_A_BLOCK)
        self._rows, self._scores, self._histograms = rows, array(scores), histograms
        largest = self.blocks[0].stop
        self._weights = scores.new_empty(largest, len(scores))
        self._inverse = scores.new_empty(n_books, largest)

    def before(self, block: slice) -> Tensor:
        """The histogram before a block, (B * W,)."""
        return self._histograms[block.start // self._part_rows]

    def weigh(self, block: slice, *, histogram: Tensor | None) -> tuple[Tensor, Tensor]:
        """A (rows, B * W) and 1 / Z (B, rows) of a block; histogram (rows, B * W) is filled where it is asked for."""
        from recbole_lisa.ops.lisa.numba_kernels import weigh_rows, weigh_rows_in_parts

        weights = self._weights[: block.stop - block.start]
        first = block.start // self._part_rows
        histograms = self._histograms[first : first + PARTS_OF_A_BLOCK]
        read = (self._part_rows, *self._rows, block.start, self._scores, array(histograms))
        written = targets(weights, self._inverse, _or_no_rows(histogram, weights))
        share(weigh_rows, weigh_rows_in_parts, len(histograms), *read, *written)
        return weights, self._inverse
