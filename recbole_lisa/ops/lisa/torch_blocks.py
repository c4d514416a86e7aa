r"""LISA in PyTorch, a block of positions at a time, for what the Numba and Triton kernels do not serve.

That is bidirectional attention, scores that span more than readout.SAFE_SPAN, float64 on a GPU, and GPUs without
Triton. Inside a block of S positions that follows the histogram F_0:

    F_i = exp(-(decay_1 + ... + decay_i)) F_0 + sum_{j <= i} exp(-(decay_{j+1} + ... + decay_i)) E_j

All exponents are at most 0, so nothing overflows at any length. Forward keeps the histogram before each block; backward
computes a block again under autograd, from the last block to the first, and passes the gradient of F_0 on.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from recbole_lisa.ops.checks import differentiable_once
from recbole_lisa.ops.lisa.histogram import MAX_DECAY
from recbole_lisa.ops.numba_threads import cut_rows

BLOCK_STEPS = 64
"""S: the triangular product costs S multiplications an entry, and each block costs a dozen calls."""
BLOCK_ELEMENTS = 2**18
"""Entries of one block's (n, S, B * W) tensors: 1 MB in float32, so that a few of them stay in cache."""
MAX_EXPONENT = {torch.float32: 80.0, torch.float64: 700.0}
"""d A / d F = exp(T) / Z of an absent codeword can exceed the dtype; its exponent is cut here to stay finite."""


class _Operands(NamedTuple):
    """What both passes read."""

    items: Tensor  # (N, L)
    query: Tensor  # (U, B) int64 flat codes b * W + code
    keys: Tensor | None  # (U, B * W)
    scores: Tensor  # (B * W, W) rows of T
    values: Tensor  # (B * W, D)
    decay: Tensor  # float64, 0-d or (N, L)
    valid: Tensor | None  # (N, L) bool


class _Block(NamedTuple):
    """n sequences and S steps."""

    items: Tensor  # (n * S,)
    query: Tensor  # (n * S * B,)
    keys: Tensor  # (n, S, B * W), 0 at padding
    decay: Tensor  # (n or 1, S)
    present: Tensor | None  # (n, S, 1)


def _cut(op: _Operands) -> tuple[list[slice], list[slice]]:
    """Groups of sequences that are worked on together, and the steps of each block."""
    n, length = op.items.shape
    return cut_rows(n, len(op.values) * min(length, BLOCK_STEPS), BLOCK_ELEMENTS), cut_rows(length, 1, BLOCK_STEPS)


def _read(op: _Operands, rows: slice, steps: slice) -> _Block:
    items = op.items[rows, steps]  # (n, S)
    flat = items.flatten()
    query = op.query.index_select(0, flat)  # (n * S, B)
    if op.keys is None:
        keys = op.values.new_zeros(len(flat), len(op.values)).scatter_(1, query, 1.0)
    else:
        keys = op.keys.index_select(0, flat)
    keys = keys.view(*items.shape, -1)
    present = None if op.valid is None else op.valid[rows, steps].unsqueeze(-1)
    if present is not None:
        keys = keys.masked_fill(~present, 0.0)
    decay = op.decay[rows, steps] if op.decay.dim() else op.decay.expand(1, items.shape[1])
    return _Block(flat, query.flatten(), keys, decay, present)


def _histograms(keys: Tensor, carry: Tensor, decay: Tensor) -> Tensor:
    """F after each step, (n, S, B * W), from keys of that shape, carry (n, B * W) and decay (n or 1, S)."""
    elapsed = decay.clamp(max=MAX_DECAY).cumsum(dim=1)  # (n or 1, S)
    exponent = elapsed.unsqueeze(1) - elapsed.unsqueeze(2)  # (n or 1, S, S), [i, j] for key j at step i
    later = torch.ones(exponent.shape[1:], dtype=torch.bool, device=keys.device).triu(1)
    left = exponent.masked_fill(later, -torch.inf).to(keys.dtype).exp()
    return left @ keys + elapsed.neg().to(keys.dtype).exp().unsqueeze(-1) * carry.unsqueeze(1)


def attention_weights(f: Tensor, t: Tensor, *, straight_through: bool) -> Tensor:
    """A = softmax(log F + T[q]) of F and T[q] (..., W), differentiable also at F = 0; 0 where no F is above 0."""
    with torch.no_grad():
        peak = (f.clamp_min(0.0).log() + t).logsumexp(dim=-1, keepdim=True)
        peak = peak.where(peak.isfinite(), 0.0)
    slope = (t - peak).clamp_max(MAX_EXPONENT[t.dtype]).exp()  # exp(T) / Z
    weights = f * slope
    if straight_through:
        weights = f.detach() * slope + (f - f.detach()) * slope.detach().clamp_max(1.0)
    return weights / weights.sum(dim=-1, keepdim=True).clamp_min(torch.finfo(t.dtype).tiny)


def _attend(
    histogram: Tensor,
    query: Tensor,
    scores: Tensor,
    values: Tensor,
    present: Tensor | None,
    *,
    straight_through: bool = False,
) -> Tensor:
    """A V, (n, S, D), from F (n, S, B * W)."""
    f, t = histogram.reshape(len(query), -1), scores.index_select(0, query)  # (n * S * B, W)
    out = attention_weights(f, t, straight_through=straight_through).view(histogram.shape) @ values
    return out if present is None else out.masked_fill(~present, 0.0)


class BlockedLISA(torch.autograd.Function):
    """apply(causal, straight_through, *operands) -> (N, L, D), as lisa_attention_items, with those of _Operands."""

    @staticmethod
    def forward(ctx: Any, causal: bool, straight_through: bool, *operands: Any) -> Tensor:
        """Scan and read block by block."""
        op = _Operands(*operands)
        groups, spans = _cut(op)
        out = op.values.new_empty(*op.items.shape, op.values.shape[-1])
        carries = op.values.new_zeros(len(spans), len(op.items), len(op.values))  # F before each block
        for rows in groups:
            if not causal:
                carries[:, rows] = torch.stack([_read(op, rows, steps).keys.sum(dim=1) for steps in spans]).sum(dim=0)
            for number, steps in enumerate(spans):
                block, carry = _read(op, rows, steps), carries[number, rows]
                histogram = _histograms(block.keys, carry, block.decay) if causal else _spread(carry, block.keys)
                out[rows, steps] = _attend(histogram, block.query, op.scores, op.values, block.present)
                if causal and number + 1 < len(spans):
                    carries[number + 1, rows] = histogram[:, -1]
        ctx.causal, ctx.straight_through = causal, straight_through
        ctx.save_for_backward(*op, carries)
        return out

    @staticmethod
    @differentiable_once
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients by assignment, table, values and decay."""
        *operands, carries = ctx.saved_tensors
        op = _Operands(*operands)
        groups, spans = _cut(op)
        d_keys = torch.zeros_like(op.keys) if op.keys is not None and ctx.needs_input_grad[4] else None
        d_decay = torch.zeros_like(op.decay) if ctx.needs_input_grad[7] else None
        d_scores, d_values = torch.zeros_like(op.scores), torch.zeros_like(op.values)
        scores, values = op.scores.detach().requires_grad_(), op.values.detach().requires_grad_()
        for rows in groups:
            d_carry = torch.zeros_like(carries[0, rows])
            for number, steps in reversed(list(enumerate(spans))):
                block = _read(op, rows, steps)
                operands = block.keys, carries[number, rows], block.decay
                keys, carry, decay = (x.detach().requires_grad_() for x in operands)
                with torch.enable_grad(), torch.autocast(keys.device.type, enabled=False):
                    histogram = _histograms(keys, carry, decay) if ctx.causal else _spread(carry, keys)
                    operands = histogram, block.query, scores, values, block.present
                    out = _attend(*operands, straight_through=ctx.straight_through)
                    total = (out * grad_out[rows, steps]).sum()
                    if ctx.causal:
                        total = total + (histogram[:, -1] * d_carry).sum()
                leaves = (scores, values, carry, keys, decay)
                grads = torch.autograd.grad(total, leaves, allow_unused=True, materialize_grads=True)
                d_scores += grads[0]
                d_values += grads[1]
                d_carry = grads[2] if ctx.causal else d_carry + grads[2]
                if ctx.causal:
                    _add_gradient_of_keys(d_keys, block, grads[3])
                    if d_decay is not None:
                        target = d_decay[rows, steps] if d_decay.dim() else d_decay
                        target += grads[4] if d_decay.dim() else grads[4].sum()
            if not ctx.causal and d_keys is not None:
                for steps in spans:
                    block = _read(op, rows, steps)
                    _add_gradient_of_keys(d_keys, block, _spread(d_carry, block.keys))
        return None, None, None, None, d_keys, d_scores, d_values, d_decay, None


def _spread(carry: Tensor, keys: Tensor) -> Tensor:
    """Bidirectional attention: one histogram (n, B * W) for every step, (n, S, B * W)."""
    return carry.unsqueeze(1).expand_as(keys)


def _add_gradient_of_keys(d_keys: Tensor | None, block: _Block, grad: Tensor) -> None:
    if d_keys is not None:
        grad = grad if block.present is None else grad.masked_fill(~block.present, 0.0)
        d_keys.index_add_(0, block.items, grad.flatten(0, 1))
