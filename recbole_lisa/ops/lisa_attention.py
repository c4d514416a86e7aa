r"""LISA, linear-time self attention over codeword histograms (Algorithm 1 of the paper).

    F_i = exp(-decay_i) F_{i-1} + E_i                      histogram of the keys so far     (Eq. 8)
    A_i[b, w] = F_i[b, w] exp(T[b, q_i^b, w]) / Z_i^b      attention over codewords         (Eq. 9)
    out_i = sum_b A_i[b] V_b                               V = projected codebooks

Deviation from the paper: the decay (0 there). The work runs in blocks that stay in cache; the backward pass keeps
only one histogram a block and recomputes the rest, so no (N, L, B, W) tensor exists when the keys come as a table
of distinct items.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from recbole_lisa.ops.histogram import decay_matrix, last_histogram, scan_block, scan_block_backward
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


def _check(codes: Tensor, table: Tensor, values: Tensor, assignment: Tensor | None, decay: float | Tensor) -> None:
    if codes.dtype.is_floating_point:
        raise ValueError(f"codes must be integers, got {codes.dtype}")
    if table.dim() != 3 or table.shape[1] != table.shape[2]:
        raise ValueError(f"table must be (B, W, W), got {tuple(table.shape)}")
    if values.dim() != 3 or values.shape[:2] != table.shape[:2]:
        raise ValueError(f"values must be (B, W, D) = {tuple(table.shape[:2])} + (D,), got {tuple(values.shape)}")
    if codes.shape[-1] != table.shape[0]:
        raise ValueError(f"codes have {codes.shape[-1]} codebooks, table has {table.shape[0]}")
    if assignment is not None and tuple(assignment.shape) != (*codes.shape, table.shape[1]):
        raise ValueError(
            f"assignment must be {(*codes.shape, table.shape[1])} (codes' shape and W), got {tuple(assignment.shape)}"
        )
    if not isinstance(decay, Tensor) and not decay >= 0:
        raise ValueError(f"decay must be at least 0, got {decay}")


def lisa_attention(
    codes: Tensor,
    table: Tensor,
    values: Tensor,
    *,
    assignment: Tensor | None = None,
    decay: float | Tensor = 0.0,
    valid: Tensor | None = None,
    causal: bool = True,
) -> Tensor:
    """LISA over sequences of codes.

    Args:
        codes: (N, L, B) integer query codes, and hard keys when assignment is None.
        table: (B, W, W) raw scaled inner products, T[b, i, j] = (P^Q c_i)^T (P^K c_j) / sqrt(D).
        values: (B, W, D) projected codebooks.
        assignment: (N, L, B, W) soft or straight-through keys.
        decay: a float, a 0-d tensor, or (N, L) per-step decays, all at least 0; the first step's has no effect.
        valid: (N, L) bool, True = real item. Other positions never count as keys and their output is 0.
        causal: False sums the histogram over all valid positions (decay must then be 0).

    Returns:
        (N, L, D) in the dtype of values; differentiable in assignment, table, values and decay.

    Raises:
        ValueError: on shapes that do not fit, a negative decay, or a decay in bidirectional mode.
    """
    _check(codes, table, values, assignment, decay)
    n, length, n_codebooks = codes.shape
    items = torch.arange(n * length, device=codes.device).view(n, length)
    flat = None if assignment is None else assignment.flatten(0, 1)
    return lisa_attention_items(
        items, codes.reshape(-1, n_codebooks), table, values, assignment=flat, decay=decay, valid=valid, causal=causal
    )


def lisa_attention_items(
    items: Tensor,
    codes: Tensor,
    table: Tensor,
    values: Tensor,
    *,
    assignment: Tensor | None = None,
    decay: float | Tensor = 0.0,
    valid: Tensor | None = None,
    causal: bool = True,
) -> Tensor:
    """LISA over sequences of distinct items: rows are gathered block by block, never for all positions at once.

    Args:
        items: (N, L) index into the U rows of codes and assignment.
        codes: (U, B) query codes of the distinct items.
        table: (B, W, W).
        values: (B, W, D).
        assignment: (U, B, W) keys of the distinct items, or None for hard keys.
        decay: as in lisa_attention.
        valid: as in lisa_attention.
        causal: as in lisa_attention.

    Returns:
        (N, L, D) in the dtype of values.

    Raises:
        ValueError: as lisa_attention.
    """
    _check(codes, table, values, assignment, decay)
    dtype = torch.float64 if torch.float64 in (table.dtype, values.dtype) else torch.float32
    steps = torch.as_tensor(decay, dtype=torch.float64, device=table.device)
    if steps.dim() not in (0, 2) or (steps.dim() == 2 and steps.shape != items.shape):
        raise ValueError(f"decay must be a number or (N, L) = {tuple(items.shape)}, got {tuple(steps.shape)}")
    if not causal and (isinstance(decay, Tensor) or decay != 0):
        raise ValueError(f"bidirectional attention has no decay: pass decay=0.0, got {decay}")
    soft = None if assignment is None else nn.functional.pad(assignment.flatten(1).to(dtype), (0, 0, 0, 1))
    with torch.autocast(items.device.type, enabled=False):
        out: Tensor = _LISAAttention.apply(  # type: ignore[no-untyped-call]  # torch's Function carries no types
            items, codes.long(), soft, table.to(dtype), values.to(dtype), steps, valid, causal
        )
    return out.to(values.dtype)


def lisa_attention_last(
    items: Tensor,
    codes: Tensor,
    table: Tensor,
    values: Tensor,
    *,
    assignment: Tensor | None = None,
    decay: float | Tensor = 0.0,
    valid: Tensor,
) -> Tensor:
    """The output at each row's final valid position only: one histogram a sequence, O(L B + B W D).

    Arguments as in lisa_attention_items, with padding on the right.

    Returns:
        (N, D); zeros for a row without a valid position.

    Raises:
        ValueError: as lisa_attention.
    """
    _check(codes, table, values, assignment, decay)
    n_codebooks, n_codewords = table.shape[:2]
    steps = torch.as_tensor(decay, dtype=torch.float64, device=table.device)
    codes = codes.long()
    with torch.autocast(items.device.type, enabled=False):
        histogram = last_histogram(items, codes, n_codewords, assignment=assignment, decay=steps, valid=valid)
        final = (valid.sum(dim=1) - 1).clamp_min(0)  # (N,)
        query = codes.index_select(0, items.gather(1, final.unsqueeze(1)).squeeze(1))  # (N, B)
        return read_histogram(histogram, query, table, values)


def read_histogram(histogram: Tensor, query: Tensor, table: Tensor, values: Tensor) -> Tensor:
    """Attention of one query a row over its histogram; differentiable by autograd.

    Args:
        histogram: (N, B, W).
        query: (N, B) codes.
        table: (B, W, W).
        values: (B, W, D).

    Returns:
        (N, D) in the dtype of values.
    """
    books = torch.arange(table.shape[0], device=table.device)
    scores = table[books, query].to(histogram.dtype)  # (N, B, W)
    present = histogram > 0
    logits = histogram.where(present, torch.ones_like(histogram)).log() + scores
    weights = logits.masked_fill(~present, float("-inf")).softmax(dim=-1).nan_to_num(0.0)
    return (weights.flatten(1).to(values.dtype) @ values.flatten(0, 1)).to(values.dtype)


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


class _LISAAttention(torch.autograd.Function):
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
