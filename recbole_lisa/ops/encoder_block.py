"""The encoder block after the attention as one autograd function of Numba kernels and products, on the CPU.

    h = LayerNorm_1(x + dropout(a)),    out = LayerNorm_2(h + dropout(W2 dropout(relu(W1 h + b1)) + b2))

The work runs over blocks of rows that stay in cache. Kept for the backward pass are the inputs of both LayerNorms and
what enters W2; h and the dropout masks are computed again.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from recbole_lisa.ops.dropout_bits import draw_seeds, scale_of, threshold_of
from recbole_lisa.ops.numba_threads import array, arrays, cut_rows, numba_serves, writable

BLOCK_ELEMENTS = 2**18
"""Entries of a block's (rows, D) tensors: 1 MB in float32, to stay near the cores."""
PART_ROWS = 128
"""Rows that are summed in one go; the sums are added in order, so they are the same for any number of threads."""


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
        ValueError: shapes, types or devices do not fit, or Numba is not installed.
    """
    _check(stream, attended, weights)
    rows = [x.reshape(-1, x.shape[-1]).contiguous() for x in (stream, attended)]
    out: Tensor = _EncoderBlock.apply(*rows, threshold_of(dropout), eps, *weights)  # type: ignore[no-untyped-call]  # torch's Function carries no types
    return out.view(stream.shape)


def _check(stream: Tensor, attended: Tensor, weights: BlockWeights) -> None:
    if stream.shape != attended.shape:
        raise ValueError(f"attended must be {tuple(stream.shape)} as stream is, got {tuple(attended.shape)}")
    if not stream.dim() or not stream.shape[-1]:
        raise ValueError(f"stream must be (..., D) with D at least 1, got {tuple(stream.shape)}")
    width, inner = stream.shape[-1], weights.w1.shape[0] if weights.w1.dim() else 0
    shapes = BlockWeights((inner, width), (inner,), (width, inner), *[(width,)] * 5)  # type: ignore[arg-type]  # shapes in the places of the tensors
    for name, x, shape in zip(BlockWeights._fields, weights, shapes, strict=True):
        if tuple(x.shape) != tuple(shape):
            raise ValueError(f"{name} must be {tuple(shape)}, got {tuple(x.shape)}")
    if not numba_serves(stream, attended, *weights):
        types = sorted({f"{x.dtype} on {x.device}" for x in (stream, attended, *weights)})
        raise ValueError(
            f"all operands must be float32, or all float64, on the CPU, with Numba; got {', '.join(types)}"
        )


class _Masks(NamedTuple):
    """What makes the three dropout masks: seeds (3, 2), threshold."""

    seeds: Any
    threshold: int

    def of(self, number: int, first_row: int, like: Tensor) -> dict[str, Any]:
        """The kernels' operands for one mask."""
        scale = array(like.new_full((), scale_of(self.threshold)))[()]
        return {"seed": self.seeds[number], "threshold": self.threshold, "scale": scale, "first_row": first_row}


class _EncoderBlock(torch.autograd.Function):
    """apply(stream (M, D), attended (M, D), threshold, eps, *weights) -> (M, D)."""

    @staticmethod
    def forward(ctx: Any, stream: Tensor, attended: Tensor, threshold: int, eps: float, *weights: Tensor) -> Tensor:
        """Block by block; what backward needs is written where it is kept."""
        from recbole_lisa.ops.encoder_kernels import Activate, AddAndNorm, activate, add_and_norm

        w, masks = BlockWeights(*weights), _Masks(draw_seeds(3, threshold), threshold)
        out, first, second = (torch.empty_like(stream) for _ in range(3))
        inner, moments = stream.new_empty(len(stream), len(w.w1)), stream.new_empty(2, 2, len(stream))
        epsilon = array(stream.new_full((), eps))[()]

        def add(number: int, rows: slice, x: Tensor, branch: Tensor, total: Tensor, result: Tensor) -> None:
            gain, shift = (w.gain1, w.shift1) if number == 0 else (w.gain2, w.shift2)
            stats, mask = stream.new_empty(2, len(x)), masks.of(2 * number, rows.start, stream)
            written = writable(total=total[rows], moments=stats, out=result)
            read = arrays(x=x, branch=branch, gain=gain, shift=shift)
            add_and_norm(len(x), AddAndNorm(**read, **written, eps=epsilon, **mask))
            moments[number][:, rows] = stats

        for rows in cut_rows(len(stream), stream.shape[1], BLOCK_ELEMENTS):
            h = torch.empty_like(stream[rows])
            add(0, rows, stream[rows], attended[rows], first, h)
            u = torch.addmm(w.b1, h, w.w1.t())  # (rows, F)
            mask = masks.of(1, rows.start, stream)
            activate(len(u), Activate(**arrays(x=u), **writable(out=inner[rows]), **mask))
            fed = torch.addmm(w.b2, inner[rows], w.w2.t())  # (rows, D)
            add(1, rows, h, fed, second, out[rows])
        ctx.save_for_backward(first, inner, second, moments, *weights)
        ctx.masks = masks
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients by stream, attended and the weights."""
        from recbole_lisa.ops import encoder_kernels as kernels

        first, inner, second, moments, *weights = ctx.saved_tensors
        w, masks = BlockWeights(*weights), ctx.masks
        sums = BlockWeights(*(torch.zeros_like(x) for x in w))
        d_stream, d_attended = torch.empty_like(first), torch.empty_like(first)

        def undo(number: int, rows: slice, grad: Tensor, total: Tensor, d_x: Tensor, d_branch: Tensor) -> None:
            gain, *d_gain_shift = (w.gain1, sums.gain1, sums.shift1) if number == 0 else (w.gain2, *sums[6:])
            d_norm = gain.new_zeros(-(-len(grad) // PART_ROWS), 2, len(gain))
            read = arrays(grad=grad, gain=gain, total=total[rows], moments=moments[number][:, rows])
            written = writable(d_x=d_x, d_branch=d_branch, d_norm=d_norm)
            mask = masks.of(2 * number, rows.start, first)
            op = kernels.UndoAddAndNorm(**read, **written, part_rows=PART_ROWS, **mask)
            kernels.undo_add_and_norm(len(d_norm), op)
            for target, by in zip(d_gain_shift, d_norm.sum(dim=0), strict=True):
                target.add_(by)

        with torch.autocast("cpu", enabled=False):
            for rows in cut_rows(len(first), first.shape[1], BLOCK_ELEMENTS):
                d_h, d_fed, h = (torch.empty_like(first[rows]) for _ in range(3))
                undo(1, rows, grad[rows], second, d_h, d_fed)
                sums.w2.addmm_(d_fed.t(), inner[rows])
                sums.b2.add_(d_fed.sum(dim=0))
                d_inner = d_fed @ w.w2  # (rows, F)
                scale = masks.of(1, rows.start, first)["scale"]
                op = kernels.UndoActivate(**arrays(out=inner[rows]), **writable(grad=d_inner), scale=scale)
                kernels.undo_activate(len(h), op)
                read = arrays(total=first[rows], moments=moments[0][:, rows], gain=w.gain1, shift=w.shift1)
                kernels.norm_again(len(h), kernels.Norm(**read, **writable(out=h)))
                sums.w1.addmm_(d_inner.t(), h)
                sums.b1.add_(d_inner.sum(dim=0))
                d_h.addmm_(d_inner, w.w1)
                undo(0, rows, d_h, first, d_stream[rows], d_attended[rows])
        return d_stream, d_attended, None, None, *sums
