r"""The blocked forward and backward passes of LISA as one autograd function.

Each block of n sequences and T steps stays in cache. Forward keeps the histogram before each block and nothing else;
backward visits the blocks from last to first, recomputes them and carries the gradient of the histogram:

    H_i = d F_i + exp(-decay_{i+1}) H_{i+1},    d E_i = H_i,    d decay_i = -exp(-decay_i) <H_i, F_{i-1}>
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from recbole_lisa.ops.histogram import decay_matrix, scan_block, scan_block_backward
from recbole_lisa.ops.readout import ScoreTable, attention_weights, score_table

BLOCK_ELEMENTS = 2**18
"""Entries of one block's (rows, B * W) buffers: about 1 MB in float32, so that a block stays in cache."""
MIN_STEPS, MAX_STEPS = 32, 128


class _Operands(NamedTuple):
    """What both passes read.

    items (N, L); codes (U, B); assignment (U + 1, B * W), whose last row of zeros stands for padding, or None; values
    (B * W, D).
    """

    items: Tensor
    codes: Tensor
    assignment: Tensor | None
    scores: ScoreTable
    values: Tensor
    decay: Tensor
    valid: Tensor | None


class _Block(NamedTuple):
    """One block of n sequences and T steps, read from the operands."""

    rows: slice
    steps: slice
    items: Tensor
    query: Tensor
    keys: Tensor
    decay: Tensor


def _block_shape(n: int, length: int, columns: int) -> tuple[int, int]:
    """Sequences and steps of a block: enough rows to amortise a call, few enough to stay in cache."""
    rows = max(BLOCK_ELEMENTS // columns, 1)
    steps = min(length, max(MIN_STEPS, min(MAX_STEPS, rows // max(n, 1))))
    return max(rows // max(steps, 1), 1), max(steps, 1)


def _blocks(op: _Operands, *, reverse: bool = False) -> Iterator[tuple[slice, list[slice]]]:
    """Groups of sequences, each with its blocks of steps in order (or from last to first)."""
    n, length = op.items.shape
    group, steps = _block_shape(n, length, op.values.shape[0])
    starts = range(0, length, steps)
    spans = [slice(s, min(s + steps, length)) for s in (reversed(starts) if reverse else starts)]
    for first in range(0, n, group):
        yield slice(first, min(first + group, n)), spans


def _read_block(op: _Operands, rows: slice, steps: slice) -> _Block:
    items = op.items[rows, steps]  # (n, T)
    n, length = items.shape
    flat = items.flatten()
    n_codebooks = op.codes.shape[1]
    codes = op.codes.index_select(0, flat)  # (n * T, B)
    n_codewords = op.values.shape[0] // n_codebooks
    query = codes + torch.arange(n_codebooks, device=codes.device) * n_codewords  # (n * T, B)
    valid = None if op.valid is None else op.valid[rows, steps].flatten()
    if op.assignment is None:
        keys = op.values.new_zeros(n * length, op.values.shape[0])
        present = keys.new_ones(n * length) if valid is None else valid.to(keys.dtype)
        keys.scatter_(1, query, present.unsqueeze(1).expand_as(query))
    else:
        flat = flat if valid is None else flat.masked_fill(~valid, op.assignment.shape[0] - 1)
        keys = op.assignment.index_select(0, flat)
    keys = keys.view(n, length, -1)  # (n, T, B * W)
    decay = op.decay.expand(1, length) if op.decay.dim() == 0 else op.decay[rows, steps]
    return _Block(rows, steps, flat, query.flatten(), keys, decay)


def _sum_keys(op: _Operands, rows: slice, spans: list[slice]) -> Tensor:
    """Bidirectional histogram: the sum over all valid positions, (n, B * W)."""
    return torch.stack([_read_block(op, rows, steps).keys.sum(dim=1) for steps in spans]).sum(dim=0)


def _weights(op: _Operands, histogram: Tensor, query: Tensor) -> tuple[Tensor, Tensor]:
    """A and its slope as (n * T, B * W) matrices."""
    n_codebooks = op.codes.shape[1]
    weights, slope = attention_weights(histogram.reshape(-1, n_codebooks, op.scores.rows.shape[1]), query, op.scores)
    return weights.flatten(1), slope.flatten(1)


class BlockedLISA(torch.autograd.Function):
    """apply(items, codes, assignment, table, values, decay, valid, causal) -> (N, L, D); see lisa_attention_items.

    Here codes are (U, B) int64, assignment is (U + 1, B * W) with a last row of zeros or None, and decay is float64,
    0-d or (N, L).
    """

    @staticmethod
    def forward(
        ctx: Any,
        items: Tensor,
        codes: Tensor,
        assignment: Tensor | None,
        table: Tensor,
        values: Tensor,
        decay: Tensor,
        valid: Tensor | None,
        causal: bool,
    ) -> Tensor:
        """Scan and read out block by block."""
        op = _Operands(items, codes, assignment, score_table(table), values.flatten(0, 1), decay, valid)
        out = values.new_empty(*items.shape, values.shape[-1])  # (N, L, D)
        carries: dict[tuple[int, int], Tensor] = {}
        for rows, spans in _blocks(op):
            n = rows.stop - rows.start
            carry = values.new_zeros(n, op.values.shape[0]) if causal else _sum_keys(op, rows, spans)
            for steps in spans:
                carries[rows.start, steps.start] = carry
                block = _read_block(op, rows, steps)
                if causal:
                    histogram = scan_block(block.keys, carry, decay_matrix(block.decay, values.dtype))
                    carry = histogram[:, -1].clone()
                else:
                    histogram = carry.unsqueeze(1).expand_as(block.keys)
                weights, _ = _weights(op, histogram, block.query)
                out[rows, steps] = (weights @ op.values).view(n, -1, out.shape[-1])
        if valid is not None:
            out *= valid.unsqueeze(-1)
        ctx.causal = causal
        ctx.carries = carries if any(ctx.needs_input_grad) else None
        ctx.save_for_backward(items, codes, assignment, table, values, decay, valid)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients by assignment, table, values and decay."""
        items, codes, assignment, table, values, decay, valid = ctx.saved_tensors
        op = _Operands(items, codes, assignment, score_table(table), values.flatten(0, 1), decay, valid)
        if valid is not None:
            grad_out = grad_out * valid.unsqueeze(-1)
        with torch.autocast(items.device.type, enabled=False):
            grads = _backward(op, grad_out.to(values.dtype), ctx.carries, causal=ctx.causal)
        d_assignment, d_table, d_values, d_decay = grads
        return (
            None,
            None,
            d_assignment if ctx.needs_input_grad[2] else None,
            d_table.view_as(table),
            d_values.view_as(values),
            d_decay if ctx.needs_input_grad[5] else None,
            None,
            None,
        )


def _backward(
    op: _Operands, grad_out: Tensor, carries: dict[tuple[int, int], Tensor], *, causal: bool
) -> tuple[Tensor | None, Tensor, Tensor, Tensor]:
    """Gradients by the assignment table, the score table, the values and the decay, blocks from last to first."""
    d_assignment = None if op.assignment is None else torch.zeros_like(op.assignment)
    d_table, d_values, d_decay = (torch.zeros_like(x) for x in (op.scores.rows, op.values, op.decay))
    for rows, spans in _blocks(op, reverse=True):
        carry_grad = op.values.new_zeros(rows.stop - rows.start, op.values.shape[0])
        for steps in spans:
            carry = carries[rows.start, steps.start]
            block = _read_block(op, rows, steps)
            if causal:
                decays = decay_matrix(block.decay, op.values.dtype)
                histogram = scan_block(block.keys, carry, decays)
            else:
                histogram = carry.unsqueeze(1).expand_as(block.keys)
            d_histogram = _readout_backward(op, histogram, block.query, grad_out[rows, steps], d_table, d_values)
            if not causal:
                carry_grad += d_histogram.sum(dim=1)
                continue
            total, carry_grad = scan_block_backward(d_histogram, carry_grad, decays)  # (n, T, B * W), (n, B * W)
            _add_key_gradient(block, total, d_assignment)
            _add_decay_gradient(block, total, histogram, carry, d_decay)
        if not causal:
            for steps in spans:
                block = _read_block(op, rows, steps)
                _add_key_gradient(block, carry_grad.unsqueeze(1).expand_as(block.keys), d_assignment)
    return d_assignment, d_table, d_values, d_decay


def _readout_backward(
    op: _Operands, histogram: Tensor, query: Tensor, grad: Tensor, d_table: Tensor, d_values: Tensor
) -> Tensor:
    """Add to d_table and d_values; return d F (n, T, B * W) = (d A - sum_w A d A) exp(T) / Z."""
    n_codewords = op.scores.rows.shape[1]
    weights, slope = _weights(op, histogram, query)  # (n * T, B * W)
    rows = grad.reshape(-1, grad.shape[-1])  # (n * T, D)
    d_values.addmm_(weights.t(), rows)
    d_weights = (rows @ op.values.t()).view(-1, n_codewords)  # (n * T * B, W)
    weights = weights.view(-1, n_codewords)
    d_weights -= (weights * d_weights).sum(dim=-1, keepdim=True)
    d_table.index_add_(0, query, weights.mul_(d_weights))
    return d_weights.mul_(slope.view(-1, n_codewords)).view_as(histogram)


def _add_key_gradient(block: _Block, total: Tensor, d_assignment: Tensor | None) -> None:
    if d_assignment is not None:
        d_assignment.index_add_(0, block.items, total.reshape(-1, total.shape[-1]))


def _add_decay_gradient(block: _Block, total: Tensor, histogram: Tensor, carry: Tensor, d_decay: Tensor) -> None:
    """d decay_i = -exp(-decay_i) sum_{b, w} H_i F_{i-1}."""
    previous = torch.cat([carry.unsqueeze(1), histogram[:, :-1]], dim=1)  # (n, T, B * W)
    grad = (total * previous).sum(dim=-1).to(d_decay.dtype).mul_(block.decay.neg().exp()).neg_()  # (n, T)
    if d_decay.dim() == 0:
        d_decay += grad.sum()
    else:
        d_decay[block.rows, block.steps] += grad
