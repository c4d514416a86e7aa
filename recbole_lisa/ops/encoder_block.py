"""The encoder block after the attention as one autograd function with Numba kernels, on the CPU.

    h = LayerNorm_1(x + dropout(a)),    out = LayerNorm_2(h + dropout(W2 dropout(relu(W1 h + b1)) + b2))

Blocks of rows stay in cache while all operations run over them in place. Kept for the backward pass are the inputs of
both LayerNorms and what enters W2; h and the dropout masks are computed again.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from recbole_lisa.ops.checks import check_number, check_operands, differentiable_once
from recbole_lisa.ops.dropout_bits import draw_mask
from recbole_lisa.ops.numba_threads import arrays, cut_rows, numba_serves, writable

BLOCK_ELEMENTS = 2**18
"""Entries of a block's (rows, D) tensors: 1 MB in float32. Smaller blocks cost calls, larger ones leave the cache."""
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


def encoder_block_serves(*operands: Tensor) -> bool:
    """Whether encoder_block replaces the modules: gradients are recorded, on the CPU, in one type.

    Without gradients nothing is kept for a backward pass, and the modules are as fast. Autocast and torch.compile go
    through the modules.
    """
    plain = torch.is_grad_enabled() and not (torch.is_autocast_enabled("cpu") or torch.compiler.is_compiling())
    return plain and numba_serves(*operands)


def encoder_block(stream: Tensor, attended: Tensor, weights: BlockWeights, *, dropout: float, eps: float) -> Tensor:
    """The block with relu, of the residual stream x and the output a of the attention, (..., D) each: (..., D).

    On the CPU, float32 or float64. `dropout` is the probability of each of the three masks; `eps` is used in both
    LayerNorms. Differentiable once in stream, attended and weights.

    Raises:
        ValueError: shapes, types or devices do not fit.
    """
    shapes = "w1: F D; b1: F; w2: D F; b2: D; gain1: D; shift1: D; gain2: D; shift2: D"
    check_operands(f"stream: ... D+; {shapes}; attended: ... D", stream, *weights, attended)
    if stream.shape != attended.shape:
        raise ValueError(f"attended must be {tuple(stream.shape)} as stream is, got {tuple(attended.shape)}")
    check_number("eps", eps, 0)
    if not numba_serves(stream, attended, *weights):
        raise ValueError(f"operands must be float32 or float64, on the CPU, with Numba; got {stream.dtype}")
    rows = [x.reshape(-1, x.shape[-1]).contiguous() for x in (stream, attended)]
    out: Tensor = _EncoderBlock.apply(*rows, dropout, eps, *weights)  # type: ignore[no-untyped-call]  # torch's Function carries no types
    return out.view(stream.shape)


class _EncoderBlock(torch.autograd.Function):
    """apply(stream (M, D), attended (M, D), dropout, eps, *weights) -> (M, D)."""

    @staticmethod
    def forward(ctx: Any, stream: Tensor, attended: Tensor, dropout: float, eps: float, *weights: Tensor) -> Tensor:
        """Block by block; what backward needs is written where it is kept."""
        from recbole_lisa.ops.encoder_kernels import AddAndNorm, Drop, add_and_norm, drop

        w = BlockWeights(*weights)
        out, first, second = (torch.empty_like(stream) for _ in range(3))
        inner, moments = stream.new_empty(len(stream), len(w.w1)), stream.new_empty(2, len(stream), 2)
        masks = [draw_mask(dropout) for _ in range(3)]

        def add(number: int, rows: slice, x: Tensor, branch: Tensor, total: Tensor, result: Tensor) -> None:
            read = arrays(x=x, branch=branch, gain=w[4 + 2 * number], shift=w[5 + 2 * number])
            written = writable(total=total[rows], moments=moments[number, rows], out=result)
            add_and_norm(len(x), AddAndNorm(**read, **written, eps=eps, **masks[2 * number].at(rows.start)))

        for rows in cut_rows(len(stream), stream.shape[1], BLOCK_ELEMENTS):
            h = torch.empty_like(stream[rows])
            add(0, rows, stream[rows], attended[rows], first, h)
            u = torch.addmm(w.b1, h, w.w1.t())  # (rows, F)
            drop(len(u), Drop(**arrays(x=u), **writable(out=inner[rows]), floor=0.0, **masks[1].at(rows.start)))
            fed = torch.addmm(w.b2, inner[rows], w.w2.t())  # (rows, D)
            add(1, rows, h, fed, second, out[rows])
        ctx.save_for_backward(first, inner, second, moments, *weights)
        ctx.masks = masks
        return out

    @staticmethod
    @differentiable_once
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients by stream, attended and the weights."""
        from recbole_lisa.ops.encoder_kernels import UndoAddAndNorm, undo_add_and_norm

        first, inner, second, moments, *weights = ctx.saved_tensors
        masks, w = ctx.masks, BlockWeights(*weights)
        sums = BlockWeights(*(torch.zeros_like(x) for x in w))
        d_stream, d_attended = torch.empty_like(first), torch.empty_like(first)

        def undo(number: int, rows: slice, grad: Tensor, total: Tensor, d_x: Tensor, d_branch: Tensor) -> None:
            gain, d_gain, d_shift = w[4 + 2 * number], *sums[4 + 2 * number : 6 + 2 * number]
            d_norm = gain.new_zeros(-(-len(grad) // PART_ROWS), 2, len(gain))
            read = arrays(grad=grad, gain=gain, total=total[rows], moments=moments[number, rows])
            written = writable(d_x=d_x, d_branch=d_branch, d_norm=d_norm)
            op = UndoAddAndNorm(**read, **written, part_rows=PART_ROWS, **masks[2 * number].at(rows.start))
            undo_add_and_norm(len(d_norm), op)
            for target, by in zip((d_gain, d_shift), d_norm.sum(dim=0), strict=True):
                target.add_(by)

        with torch.autocast("cpu", enabled=False):
            scaled_w2 = w.w2 * masks[1].scale
            for rows in cut_rows(len(first), first.shape[1], BLOCK_ELEMENTS):
                d_h, d_fed = torch.empty_like(first[rows]), torch.empty_like(first[rows])
                undo(1, rows, grad[rows], second, d_h, d_fed)
                sums.w2.addmm_(d_fed.t(), inner[rows])
                sums.b2.add_(d_fed.sum(dim=0))
                # inner is above 0 where relu and the mask kept the element.
                d_inner = d_fed @ scaled_w2  # (rows, F)
                torch.ops.aten.threshold_backward.grad_input(d_inner, inner[rows], 0, grad_input=d_inner)
                mean, slope = moments[0, rows].split(1, dim=1)
                h = first[rows].sub(mean).mul_(slope)
                torch.addcmul(w.shift1, h, w.gain1, out=h)
                sums.w1.addmm_(d_inner.t(), h)
                sums.b1.add_(d_inner.sum(dim=0))
                undo(0, rows, d_h.addmm_(d_inner, w.w1), first, d_stream[rows], d_attended[rows])
        return d_stream, d_attended, None, None, *sums
