r"""The blocked forward and backward passes of LISA as one autograd function.

Each block of n sequences and S steps stays in cache. Forward keeps the histogram before each block and nothing else;
backward visits the blocks from last to first, recomputes them and carries the gradient of the histogram:

    d F_i = (d A_i - sum_w A_i d A_i) exp(T[q_i]) / Z_i,    d T[q_i] += F_i d F_i
    H_i = d F_i + exp(-decay_{i+1}) H_{i+1},    d E_i = H_i,    d decay_i = -exp(-decay_i) <H_i, F_{i-1}>
"""

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from recbole_lisa.ops.lisa.histogram import BlockDecay, block_decay, scan_block, scan_block_backward
from recbole_lisa.ops.lisa.readout import ScoreTable, attention_weights, score_table

BLOCK_ELEMENTS = 2**17
"""Entries of one block's (rows, B * W) buffers: 0.5 MB in float32, so that a few of them stay in cache."""
MIN_ROWS = 256
"""Rows of a block at least, so that the product with the values is worth its call."""
CHUNK_STEPS = 16
"""Steps that the recurrence takes one after the other; all else runs in parallel."""


class _Operands(NamedTuple):
    """What both passes read.

    items (N, L); query (U, B) flat codes b * W + q; assignment (U + 1, B * W), whose last row of zeros stands for
    padding, or None; values (B * W, D).
    """

    items: Tensor
    query: Tensor
    assignment: Tensor | None
    scores: ScoreTable
    values: Tensor
    decay: Tensor
    valid: Tensor | None


class _Span(NamedTuple):
    """Steps start .. start + n_chunks * n_steps of every sequence of a group; number counts the spans."""

    number: int
    start: int
    n_chunks: int
    n_steps: int

    @property
    def steps(self) -> slice:
        return slice(self.start, self.start + self.n_chunks * self.n_steps)


class _Buffers:
    """Memory that the blocks use in turn, by name: fresh memory costs more than the work of a block."""

    def __init__(self, like: Tensor) -> None:
        self._like = like
        self._kept: dict[str, Tensor] = {}

    def take(self, name: str, *shape: int) -> Tensor:
        """An uninitialised tensor; the next tensor of that name overwrites it."""
        size = math.prod(shape)
        kept = self._kept.get(name)
        if kept is None or kept.numel() < size:
            kept = self._kept[name] = self._like.new_empty(size)
        return kept[:size].view(shape)


class _Block(NamedTuple):
    """One block of n sequences and S steps.

    items (n * S,); query (n * S * B,) flat codes; keys (n, S, B * W), overwritten by the scan with the histograms;
    present (n * S, 1) 1 or 0, or None.
    """

    items: Tensor
    query: Tensor
    keys: Tensor
    present: Tensor | None


def _plan(n: int, length: int, columns: int) -> tuple[list[slice], list[_Span]]:
    """Groups of sequences, and the spans of steps that each group is worked through in."""
    lanes = max(max(BLOCK_ELEMENTS // columns, MIN_ROWS) // min(length, CHUNK_STEPS), 1)
    size = -(-n // -(-n // lanes))
    groups = [slice(first, min(first + size, n)) for first in range(0, n, size)]
    most = max(lanes // size, 1)
    spans: list[_Span] = []
    start = 0
    while start < length:
        n_chunks = max(min(most, (length - start) // CHUNK_STEPS), 1)
        n_steps = min(CHUNK_STEPS, length - start)
        spans.append(_Span(len(spans), start, n_chunks, n_steps))
        start = spans[-1].steps.stop
    return groups, spans


class _Decays:
    """Decay factors block by block; those of one decay for all are prepared once a shape."""

    def __init__(self, decay: Tensor, dtype: torch.dtype) -> None:
        self._decay = decay
        self._dtype = dtype
        self._shared: dict[tuple[int, int], BlockDecay] = {}

    def of(self, rows: slice, span: _Span) -> BlockDecay:
        """Factors of a block."""
        shape = (span.n_chunks, span.n_steps)
        if self._decay.dim():
            return block_decay(self._decay[rows, span.steps], *shape, self._dtype)
        if shape not in self._shared:
            self._shared[shape] = block_decay(self._decay, *shape, self._dtype)
        return self._shared[shape]


def _read_block(op: _Operands, rows: slice, steps: slice, buffers: _Buffers) -> _Block:
    items = op.items[rows, steps]  # (n, S)
    flat = items.flatten()
    query = op.query.index_select(0, flat)  # (n * S, B)
    valid = None if op.valid is None else op.valid[rows, steps].reshape(-1, 1)
    present = None if valid is None else valid.to(op.values.dtype)
    keys = buffers.take("keys", flat.shape[0], op.values.shape[0])
    if op.assignment is None:
        ones = op.values.new_ones(1, 1) if present is None else present
        keys.zero_().scatter_(1, query, ones.expand_as(query))
    else:
        if valid is not None:
            flat = flat.masked_fill(~valid.squeeze(1), op.assignment.shape[0] - 1)
        torch.index_select(op.assignment, 0, flat, out=keys)
    return _Block(flat, query.flatten(), keys.view(*items.shape, -1), present)


def _sum_keys(op: _Operands, rows: slice, spans: list[_Span], buffers: _Buffers) -> Tensor:
    """Bidirectional histogram: the sum over all valid positions, (n, B * W)."""
    return torch.stack([_read_block(op, rows, span.steps, buffers).keys.sum(dim=1) for span in spans]).sum(dim=0)


class BlockedLISA(torch.autograd.Function):
    """apply(items, query, assignment, table, values, decay, valid, causal, span) -> (N, L, D).

    As lisa_attention_items, with query (U, B) int64 flat codes b * W + q, assignment (U + 1, B * W) with a last row of
    zeros or None, decay float64, 0-d or (N, L), and span the row_span of the table.
    """

    @staticmethod
    def forward(
        ctx: Any,
        items: Tensor,
        query: Tensor,
        assignment: Tensor | None,
        table: Tensor,
        values: Tensor,
        decay: Tensor,
        valid: Tensor | None,
        causal: bool,
        span: float,
    ) -> Tensor:
        """Scan and read out block by block."""
        op = _Operands(items, query, assignment, score_table(table, span), values.flatten(0, 1), decay, valid)
        out = values.new_empty(*items.shape, values.shape[-1])  # (N, L, D)
        carries = _forward(op, out, causal=causal, keep=any(ctx.needs_input_grad))
        ctx.causal, ctx.log_domain = causal, op.scores.log_domain
        ctx.save_for_backward(items, query, assignment, op.scores.rows, values, decay, valid, carries)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients by assignment, table, values and decay."""
        items, query, assignment, rows, values, decay, valid, carries = ctx.saved_tensors
        scores = ScoreTable(rows, ctx.log_domain)
        op = _Operands(items, query, assignment, scores, values.flatten(0, 1), decay, valid)
        wanted = ctx.needs_input_grad
        grads = _Gradients(
            assignment=torch.zeros_like(assignment) if wanted[2] else None,
            table=torch.zeros_like(rows),
            values=torch.zeros_like(op.values),
            decay=torch.zeros_like(decay) if wanted[5] else None,
        )
        with torch.autocast(items.device.type, enabled=False):
            _backward(op, grad_out, carries, grads, causal=ctx.causal)
        d_table = grads.table.view(*values.shape[:2], -1)
        return None, None, grads.assignment, d_table, grads.values.view_as(values), grads.decay, None, None, None


class _Gradients(NamedTuple):
    """Sums that the blocks add to; None where nobody asks."""

    assignment: Tensor | None
    table: Tensor
    values: Tensor
    decay: Tensor | None


def _forward(op: _Operands, out: Tensor, *, causal: bool, keep: bool) -> Tensor | None:
    """Fill out (N, L, D); return the histogram before each block, (spans, N, B * W), when it is to be kept."""
    n, length = op.items.shape
    columns, n_codewords = op.values.shape[0], op.scores.rows.shape[1]
    groups, spans = _plan(n, length, columns)
    carries = out.new_empty(len(spans), n, columns) if keep else None
    buffers, decays = _Buffers(out), _Decays(op.decay, out.dtype)
    for rows in groups:
        size = rows.stop - rows.start
        carry = out.new_zeros(size, columns) if causal else _sum_keys(op, rows, spans, buffers)
        for span in spans:
            if carries is not None:
                carries[span.number, rows] = carry
            block = _read_block(op, rows, span.steps, buffers)
            if causal:
                carry = scan_block(block.keys, carry, decays.of(rows, span))
            else:
                block.keys.copy_(carry.unsqueeze(1).expand_as(block.keys))
            histogram = block.keys.view(-1, n_codewords)  # (n * S * B, W)
            weights, gathered = (buffers.take(name, *histogram.shape) for name in ("weights", "gathered"))
            attention_weights(histogram, block.query, op.scores, weights=weights, gathered=gathered)
            _product(weights.view(-1, columns), op.values, block.present, out[rows, span.steps], buffers)
    return carries


def _product(weights: Tensor, values: Tensor, present: Tensor | None, out: Tensor, buffers: _Buffers) -> None:
    """out (n, S, D) = weights (n * S, B * W) @ values, and 0 where nothing is present."""
    direct = out.is_contiguous()
    rows = out.view(-1, out.shape[-1]) if direct else buffers.take("rows", weights.shape[0], out.shape[-1])
    torch.mm(weights, values, out=rows)
    if present is not None:
        rows.mul_(present)
    if not direct:
        out.copy_(rows.view_as(out))


def _backward(op: _Operands, grad_out: Tensor, carries: Tensor, grads: _Gradients, *, causal: bool) -> None:
    """Add to the gradients, blocks from last to first."""
    n, length = op.items.shape
    groups, spans = _plan(n, length, op.values.shape[0])
    buffers, decays = _Buffers(op.values), _Decays(op.decay, op.values.dtype)
    for rows in groups:
        carry_grad = torch.zeros_like(carries[0, rows])
        for span in reversed(spans):
            carry = carries[span.number, rows]
            block = _read_block(op, rows, span.steps, buffers)
            decay = decays.of(rows, span)
            if causal:
                scan_block(block.keys, carry, decay)
            else:
                block.keys.copy_(carry.unsqueeze(1).expand_as(block.keys))
            d_histogram = _readout_backward(op, block, grad_out[rows, span.steps], grads, buffers)
            if not causal:
                carry_grad += d_histogram.sum(dim=1)
                continue
            carry_grad = scan_block_backward(d_histogram, carry_grad, decay)  # d_histogram is the keys' gradient now
            _add_key_gradient(block, d_histogram, grads)
            _add_decay_gradient(op, rows, span, d_histogram, block.keys, carry, grads)
        if not causal:
            for span in spans:
                block = _read_block(op, rows, span.steps, buffers)
                _add_key_gradient(block, carry_grad.unsqueeze(1).expand_as(block.keys), grads)


def _readout_backward(op: _Operands, block: _Block, grad: Tensor, grads: _Gradients, buffers: _Buffers) -> Tensor:
    """Add to the gradients of table and values; return d F (n, S, B * W)."""
    columns, n_codewords = op.values.shape[0], op.scores.rows.shape[1]
    histogram = block.keys.view(-1, n_codewords)  # (n * S * B, W)
    weights, gathered, d_weights = (buffers.take(x, *histogram.shape) for x in ("weights", "gathered", "d_weights"))
    scale = attention_weights(histogram, block.query, op.scores, weights=weights, gathered=gathered)
    rows = buffers.take("rows", block.items.shape[0], grad.shape[-1])  # (n * S, D)
    rows.view_as(grad).copy_(grad)
    if block.present is not None:
        rows.mul_(block.present)
    grads.values.addmm_(weights.view(-1, columns).t(), rows)
    torch.mm(rows, op.values.t(), out=d_weights.view(-1, columns))
    weights.mul_(d_weights)
    d_weights.sub_((weights @ weights.new_ones(n_codewords)).unsqueeze(1))
    d_histogram = d_weights.mul_(gathered.mul_(scale))
    grads.table.index_add_(0, block.query, torch.mul(histogram, d_histogram, out=weights))
    return d_histogram.view_as(block.keys)


def _add_key_gradient(block: _Block, total: Tensor, grads: _Gradients) -> None:
    if grads.assignment is not None:
        grads.assignment.index_add_(0, block.items, total.reshape(-1, total.shape[-1]))


def _add_decay_gradient(
    op: _Operands, rows: slice, span: _Span, total: Tensor, histogram: Tensor, carry: Tensor, grads: _Gradients
) -> None:
    """d decay_i = -exp(-decay_i) sum_{b, w} H_i F_{i-1}."""
    if grads.decay is None:
        return
    first = (total[:, :1] * carry.unsqueeze(1)).sum(dim=-1)
    later = (total[:, 1:] * histogram[:, :-1]).sum(dim=-1)
    grad = torch.cat([first, later], dim=1).to(op.decay.dtype)  # (n, S)
    if op.decay.dim():
        grads.decay[rows, span.steps] -= grad * op.decay[rows, span.steps].neg().exp()
    else:
        grads.decay.sub_(grad.sum() * op.decay.neg().exp())
