"""The encoder block after the attention as one autograd function of compiled loops and products, on the CPU.

    h = LayerNorm_1(x + dropout(a)),    out = LayerNorm_2(h + dropout(W2 dropout(relu(W1 h + b1)) + b2))

A block of rows stays in cache; kept for the backward pass are the inputs of both LayerNorms and what enters W2.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from recbole_lisa.ops.dropout_bits import draw_seeds, scale_of, threshold_of
from recbole_lisa.ops.numba_threads import array, arrays, cut_rows, share, targets

BLOCK_ELEMENTS = 2**18
"""Entries of a block's (rows, D) tensors: 1 MB in float32, to stay near the cores."""
PART_ROWS = 128
"""Rows that are summed in one go; the sums are added in order, so that they are the same for any number of threads."""


class BlockWeights(NamedTuple):
    """Parameters: w1 (F, D), b1 (F,), w2 (D, F), b2 (D,); gain and shift (D,) of both LayerNorms."""

    w1: Tensor
    b1: Tensor
    w2: Tensor
    b2: Tensor
    gain1: Tensor
    shift1: Tensor
    gain2: Tensor
    shift2: Tensor


def encoder_block(stream: Tensor, attended: Tensor, weights: BlockWeights, *, dropout: float, eps: float) -> Tensor:
    """The block with relu.

    Args:
        stream: (..., D) residual stream x, on the CPU, float32 or float64.
        attended: (..., D) output a of the attention.
        weights: parameters of the same dtype.
        dropout: probability of all three masks, 0 for none.
        eps: of both LayerNorms.

    Returns:
        (..., D); differentiable once in stream, attended and weights.

    Raises:
        ValueError: the shapes of stream and attended differ.
    """
    if stream.shape != attended.shape:
        raise ValueError(f"attended must be {tuple(stream.shape)} as stream is, got {tuple(attended.shape)}")
    rows = [x.reshape(-1, x.shape[-1]).contiguous() for x in (stream, attended)]
    out: Tensor = _EncoderBlock.apply(*rows, threshold_of(dropout), eps, *weights)  # type: ignore[no-untyped-call]  # torch's Function carries no types
    return out.view(stream.shape)


def _numbers(like: Tensor, threshold: int, eps: float) -> Any:
    return array(torch.tensor([0.0, scale_of(threshold), eps], dtype=like.dtype))


class _EncoderBlock(torch.autograd.Function):
    """apply(stream (M, D), attended (M, D), threshold, eps, *weights) -> (M, D)."""

    @staticmethod
    def forward(ctx: Any, stream: Tensor, attended: Tensor, threshold: int, eps: float, *weights: Tensor) -> Tensor:
        """Block by block; what backward needs is written where it is kept."""
        from recbole_lisa.ops.numba_threads.encoder import (
            activate,
            activate_in_parts,
            add_and_norm,
            add_and_norm_in_parts,
        )

        w, seeds, numbers = BlockWeights(*weights), draw_seeds(3, threshold), _numbers(stream, threshold, eps)
        out, first, second = (torch.empty_like(stream) for _ in range(3))
        inner, moments = stream.new_empty(len(stream), len(w.w1)), stream.new_empty(2, 2, len(stream))
        for rows in cut_rows(len(stream), stream.shape[1], BLOCK_ELEMENTS):
            size = rows.stop - rows.start
            drop = [(seed, rows.start, threshold, numbers) for seed in seeds]
            h, stats = torch.empty_like(stream[rows]), stream.new_empty(2, 2, size)
            norm, written = arrays(w.gain1, w.shift1), targets(first[rows], stats[0], h)
            both = arrays(stream[rows], attended[rows])
            share(add_and_norm, add_and_norm_in_parts, size, *both, *drop[0], *norm, *written)
            u = torch.addmm(w.b1, h, w.w1.t())  # (rows, F)
            share(activate, activate_in_parts, size, array(u), *drop[1], *targets(inner[rows]))
            fed = torch.addmm(w.b2, inner[rows], w.w2.t())  # (rows, D)
            norm, written = arrays(w.gain2, w.shift2), targets(second[rows], stats[1], out[rows])
            share(add_and_norm, add_and_norm_in_parts, size, *arrays(h, fed), *drop[2], *norm, *written)
            moments[:, :, rows] = stats
        ctx.save_for_backward(first, inner, second, moments, *weights)
        ctx.seeds, ctx.threshold, ctx.eps = seeds, threshold, eps
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients by stream, attended and the weights."""
        from recbole_lisa.ops.numba_threads.encoder import (
            norm_again,
            norm_again_in_parts,
            undo_activate,
            undo_activate_in_parts,
            undo_add_and_norm,
            undo_add_and_norm_in_parts,
        )

        first, inner, second, moments, *weights = ctx.saved_tensors
        w, numbers = BlockWeights(*weights), _numbers(first, ctx.threshold, ctx.eps)
        sums = BlockWeights(*(torch.zeros_like(x) for x in w))
        d_stream, d_attended = torch.empty_like(first), torch.empty_like(first)

        def undo(grad: Tensor, site: int, rows: slice, total: Tensor, d_x: Tensor, d_branch: Tensor) -> None:
            gain, d_gain, d_shift = (w.gain1, sums.gain1, sums.shift1) if site == 0 else (w.gain2, *sums[6:])
            drop = (ctx.seeds[2 * site], rows.start, ctx.threshold, numbers)
            d_norm = gain.new_zeros(-(-len(grad) // PART_ROWS), 2, len(gain))
            read, written = arrays(gain, total[rows], moments[site][:, rows]), targets(d_x, d_branch, d_norm)
            loops = undo_add_and_norm, undo_add_and_norm_in_parts
            share(*loops, len(d_norm), PART_ROWS, array(grad), *drop, *read, *written)
            by_gain, by_shift = d_norm.sum(dim=0)
            d_gain.add_(by_gain)
            d_shift.add_(by_shift)

        with torch.autocast("cpu", enabled=False):
            for rows in cut_rows(len(first), first.shape[1], BLOCK_ELEMENTS):
                size = rows.stop - rows.start
                d_h, d_fed, h = (torch.empty_like(first[rows]) for _ in range(3))
                undo(grad[rows], 1, rows, second, d_h, d_fed)
                sums.w2.addmm_(d_fed.t(), inner[rows])
                sums.b2.add_(d_fed.sum(dim=0))
                d_inner = d_fed @ w.w2  # (rows, F)
                share(undo_activate, undo_activate_in_parts, size, array(inner[rows]), numbers, *targets(d_inner))
                read = arrays(first[rows], moments[0][:, rows], w.gain1, w.shift1)
                share(norm_again, norm_again_in_parts, size, *read, *targets(h))
                sums.w1.addmm_(d_inner.t(), h)
                sums.b1.add_(d_inner.sum(dim=0))
                d_h.addmm_(d_inner, w.w1)
                undo(d_h, 0, rows, first, d_stream[rows], d_attended[rows])
        return d_stream, d_attended, None, None, *sums
