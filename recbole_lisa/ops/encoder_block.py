"""The encoder block after the attention as one autograd function, on the CPU.

    h = LayerNorm_1(x + dropout(a)),    out = LayerNorm_2(h + dropout(W2 dropout(relu(W1 h + b1)) + b2))

Blocks of rows stay in cache while all operations run over them in place. Kept for the backward pass are the inputs of
both LayerNorms and what enters W2; h and the dropout masks are computed again.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from recbole_lisa.ops.dropout_bits import draw_mask

BLOCK_ELEMENTS = 2**19
"""Entries of a block's (rows, D) tensors: 2 MB in float32. Smaller blocks cost calls, larger ones leave the cache."""


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


def encoder_block_serves(*operands: Tensor) -> bool:
    """Whether encoder_block replaces the modules: gradients are recorded, on the CPU, in one floating-point type.

    Without gradients nothing is kept for a backward pass, and the modules are as fast. Autocast and torch.compile go
    through the modules.
    """
    kinds = {(x.device.type, x.dtype) for x in operands}
    plain = torch.is_grad_enabled() and not (torch.is_autocast_enabled("cpu") or torch.compiler.is_compiling())
    return plain and kinds in ({("cpu", torch.float32)}, {("cpu", torch.float64)})


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
    rows = [x.reshape(-1, x.shape[-1]) for x in (stream, attended)]
    out: Tensor = _EncoderBlock.apply(*rows, dropout, eps, *weights)  # type: ignore[no-untyped-call]  # torch's Function carries no types
    return out.view(stream.shape)


def _blocks(x: Tensor) -> list[slice]:
    size = max(BLOCK_ELEMENTS // max(x.shape[1], 1), 1)
    return [slice(first, min(first + size, len(x))) for first in range(0, len(x), size)]


class _EncoderBlock(torch.autograd.Function):
    """apply(stream (M, D), attended (M, D), dropout, eps, *weights) -> (M, D)."""

    @staticmethod
    def forward(ctx: Any, stream: Tensor, attended: Tensor, dropout: float, eps: float, *weights: Tensor) -> Tensor:
        """Block by block; what backward needs is written where it is kept."""
        w, shape = BlockWeights(*weights), stream.shape[1:]
        out, first, second = (torch.empty_like(stream, memory_format=torch.contiguous_format) for _ in range(3))
        inner, moments = stream.new_empty(len(stream), len(w.w1)), stream.new_empty(4, len(stream), 1)
        masks = [draw_mask(dropout) for _ in range(3)]
        for rows in _blocks(stream):
            masks[0].add(stream[rows], attended[rows], first[rows], rows.start)
            h, moments[0, rows], moments[1, rows] = torch.native_layer_norm(first[rows], shape, w.gain1, w.shift1, eps)
            masks[1].drop(torch.addmm(w.b1, h, w.w1.t()).relu_(), inner[rows], rows.start)  # (rows, F)
            fed = torch.addmm(w.b2, inner[rows], w.w2.t())  # (rows, D)
            masks[2].add(h, fed, second[rows], rows.start)
            written = {"out0": out[rows], "out1": moments[2, rows], "out2": moments[3, rows]}
            torch.ops.aten.native_layer_norm.out(second[rows], shape, w.gain2, w.shift2, eps, **written)
        ctx.save_for_backward(first, inner, second, moments, *weights)
        ctx.masks, ctx.eps = masks, eps
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients by stream, attended and the weights."""
        first, inner, second, moments, *weights = ctx.saved_tensors
        masks, w = ctx.masks, BlockWeights(*weights)
        sums = BlockWeights(*(torch.zeros_like(x) for x in w))
        d_stream, d_attended = torch.empty_like(first), torch.empty_like(first)
        shape = first.shape[1:]

        def undo_norm(number: int, d_out: Tensor, x: Tensor, rows: slice) -> Tensor:
            gain, shift, *targets = (*w[4:6], *sums[4:6]) if number == 1 else (*w[6:], *sums[6:])
            mean, slope = moments[2 * number - 2, rows], moments[2 * number - 1, rows]
            d_x, *by = torch.ops.aten.native_layer_norm_backward(
                d_out, x[rows], shape, mean, slope, gain, shift, [True, True, True]
            )
            for target, part in zip(targets, by, strict=True):
                target.add_(part)
            return d_x  # type: ignore[no-any-return]  # torch.ops has no types

        with torch.autocast("cpu", enabled=False):
            for rows in _blocks(first):
                d_second = undo_norm(2, grad[rows].contiguous(), second, rows)
                d_fed = masks[2].drop(d_second, torch.empty_like(d_second), rows.start)
                sums.w2.addmm_(d_fed.t(), inner[rows])
                sums.b2.add_(d_fed.sum(dim=0))
                # inner is above 0 where relu and the mask kept the element.
                d_inner = torch.ops.aten.threshold_backward(
                    (d_fed @ w.w2).mul_(masks[1].scale), inner[rows], 0
                )  # (rows, F)
                h = torch.native_layer_norm(first[rows], shape, w.gain1, w.shift1, ctx.eps)[0]
                sums.w1.addmm_(d_inner.t(), h)
                sums.b1.add_(d_inner.sum(dim=0))
                d_first = undo_norm(1, d_second.addmm_(d_inner, w.w1), first, rows)
                d_stream[rows] = d_first
                masks[0].drop(d_first, d_attended[rows], rows.start)
        return d_stream, d_attended, None, None, *sums
