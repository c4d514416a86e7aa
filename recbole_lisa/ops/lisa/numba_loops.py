r"""LISA on the CPU as one autograd function: Numba kernels around the products with the values.

The rows are the positions of all sequences, one after the other. Forward turns a block of rows into attention weights
A (rows, B * W) and multiplies them by V; it keeps the histogram before each part of a block and nothing else. Backward
visits the blocks from last to first, computes A again and adds:

    d F_i = (d A_i - <A_i, d A_i>) exp(T[q_i]) / Z_i,    d T[q_i] += F_i d F_i
    H_i = d F_i + exp(-decay_{i+1}) H_{i+1},    d E_i = H_i,    d decay_i = -exp(-decay_i) <H_i, F_{i-1}>

With straight_through, H takes d F_i with min(exp(T[q_i]) / Z_i, 1).
"""

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from recbole_lisa.ops.checks import differentiable_once
from recbole_lisa.ops.lisa.readout import score_rows
from recbole_lisa.ops.numba_threads import array, arrays, cut_rows, writable

if TYPE_CHECKING:
    from recbole_lisa.ops.lisa.numba_kernels import Rows

BLOCK_ELEMENTS = 2**18
"""Entries of a block's (rows, B * W) buffers: 1 MB in float32."""
PARTS_OF_A_BLOCK = 8
"""Parts of a block, which threads share. Their number is fixed, so that no sum depends on the number of threads."""
FORGOTTEN = {torch.float32: 1e-37, torch.float64: 1e-307}
"""Histogram entries below this become 0. They decide nothing (readout.SAFE_SPAN) and are slow to compute with."""


class Operands(NamedTuple):
    """What NumbaLISA takes; its caller has checked all of them. The sequences lie one after the other, R rows."""

    items: Tensor  # (R,) integers below U
    starts: Tensor  # (R,) bool, true at the first row of each sequence
    query: Tensor  # (U, B) int64 flat codes b * W + code
    assignment: Tensor | None  # (U, B * W)
    table: Tensor  # (B, W, W), its row_span at most readout.SAFE_SPAN
    values: Tensor  # (B, W, D)
    decay: Tensor  # float64, 0-d or (R,)
    valid: Tensor | None  # (R,) bool


class NumbaLISA(torch.autograd.Function):
    """apply(straight_through, *operands) -> (R, D), causal; the operands are those of Operands."""

    @staticmethod
    def forward(ctx: Any, straight_through: bool, *operands: Any) -> Tensor:
        """Compute the weights of a block of rows, multiply them by the values."""
        op = Operands(*operands)
        scores = score_rows(op.table)  # (B * W, W)
        flat_values = op.values.flatten(0, 1)  # (B * W, D)
        rows = _rows(op, scores)
        histograms = _histograms(rows, scores)
        attention = _Attention(rows, histograms, len(op.table))
        out = flat_values.new_empty(len(op.items), flat_values.shape[1])
        for block in attention.blocks:
            weights, _ = attention.weigh(block)
            torch.mm(weights, flat_values, out=out[block])
        ctx.straight_through = straight_through
        ctx.save_for_backward(*op._replace(table=scores), histograms)  # backward needs exp(T), not T
        return out

    @staticmethod
    @differentiable_once
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients by assignment, table, values and decay."""
        from recbole_lisa.ops.lisa.numba_kernels import unweigh_rows

        *operands, histograms = ctx.saved_tensors
        op = Operands(*operands)
        (scores, assignment, decay), (n_books, n_words, _) = (op.table, op.assignment, op.decay), op.values.shape
        flat_values, grad = op.values.flatten(0, 1), grad_out.contiguous()
        d_values, d_scores = torch.zeros_like(flat_values), torch.zeros_like(scores)
        d_keys = None if assignment is None or not ctx.needs_input_grad[4] else scores.new_zeros(assignment.shape)
        d_fade = scores.new_empty(n_books, len(op.items)) if ctx.needs_input_grad[7] else None
        written = writable(later=torch.zeros_like(histograms[0]), d_scores=d_scores, d_keys=d_keys, d_fade=d_fade)
        rows = _rows(op, scores, most=1.0 if ctx.straight_through else math.inf)
        attention = _Attention(rows._replace(**written), histograms, n_books)
        histogram = scores.new_empty(attention.blocks[0].stop, len(flat_values))
        d_weights = torch.empty_like(histogram)
        with torch.autocast("cpu", enabled=False):
            for block in reversed(attention.blocks):
                size = block.stop - block.start
                weights, in_block = attention.weigh(block, histogram[:size])
                d_values.addmm_(weights.t(), grad[block])
                torch.mm(grad[block], flat_values.t(), out=d_weights[:size])
                unweigh_rows(n_books, in_block._replace(d_weights=array(d_weights)))
        d_decay = None
        if d_fade is not None:
            by_fade = d_fade.sum(dim=0, dtype=decay.dtype)
            d_decay = -(by_fade if decay.dim() else by_fade.sum()) * decay.neg().exp()
        d_table = d_scores.view(n_books, n_words, n_words)
        return None, None, None, None, d_keys, d_table, d_values.view_as(op.values), d_decay, None


def _rows(op: Operands, scores: Tensor, *, most: float = math.inf) -> "Rows":
    """What the kernels read, as arrays; each operand has one type, so that a kernel is compiled once."""
    from recbole_lisa.ops.lisa.numba_kernels import Rows

    vector, matrix = array(scores.new_empty(0)), array(scores.new_empty(0, 0))
    dtype = vector.dtype.type
    unused = dict.fromkeys(Rows._fields, matrix) | {"factors": vector, "later": vector}
    read = arrays(
        items=op.items.long(),
        valid=torch.ones_like(op.starts) if op.valid is None else op.valid,
        starts=op.starts,
        query=op.query,
        fade=op.decay.neg().exp().to(scores.dtype).reshape(-1),
        scores=scores,
        keys=op.assignment,
    )
    return Rows(**unused | read)._replace(
        part_rows=max(BLOCK_ELEMENTS // (PARTS_OF_A_BLOCK * len(scores)), 1),
        first_row=0,
        tiny=dtype(torch.finfo(scores.dtype).tiny),
        forgotten=dtype(FORGOTTEN[scores.dtype]),
        most=dtype(most),
    )


def _histograms(rows: "Rows", scores: Tensor) -> Tensor:
    """The histogram before each part of the rows, (parts, B * W)."""
    from recbole_lisa.ops.lisa.numba_kernels import chain, sum_rows

    n_parts = -(-len(rows.items) // rows.part_rows)
    histograms = scores.new_zeros(n_parts, len(scores))
    if n_parts > 1:
        op = rows._replace(**writable(histograms=histograms, factors=scores.new_empty(n_parts)))
        sum_rows(n_parts - 1, op)
        chain(op)
    return histograms


class _Attention:
    """Attention weights block by block, in buffers that the blocks use in turn: new memory costs more than the work."""

    def __init__(self, rows: "Rows", histograms: Tensor, n_books: int) -> None:
        self._rows, self._histograms = rows, histograms
        self.blocks = cut_rows(len(rows.items), 1, rows.part_rows * PARTS_OF_A_BLOCK)
        largest = self.blocks[0].stop
        self._weights = histograms.new_empty(largest, histograms.shape[1])
        self._inverse = array(histograms.new_empty(n_books, largest))

    def weigh(self, block: slice, histogram: Tensor | None = None) -> tuple[Tensor, "Rows"]:
        """Compute A (rows, B * W) of a block, and fill histogram (rows, B * W) if given; also the kernels' operands."""
        from recbole_lisa.ops.lisa.numba_kernels import weigh_rows

        weights = self._weights[: block.stop - block.start]
        first = block.start // self._rows.part_rows
        histograms = self._histograms[first : first + PARTS_OF_A_BLOCK]
        written = writable(histograms=histograms, weights=weights, histogram=histogram)
        op = self._rows._replace(first_row=block.start, inverse=self._inverse, **written)
        weigh_rows(len(histograms), op)
        return weights, op
