"""What enters the encoder, dropout(item + position), as one autograd function of two compiled loops on the CPU."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from recbole_lisa.ops.dropout_bits import draw_seeds, scale_of, threshold_of
from recbole_lisa.ops.numba_threads import array, arrays, check_rows, share, targets


def embed_positions(rows: Tensor, where: Tensor, items: Tensor, positions: Tensor, *, dropout: float) -> Tensor:
    """out[...] = dropout(items[rows[...]] + positions[where[...]]).

    Args:
        rows: (...) rows of items, on the CPU.
        where: (...) rows of positions.
        items: (U, D), float32 or float64.
        positions: (P, D), of the same dtype.
        dropout: probability, 0 for none.

    Returns:
        (..., D); differentiable once in items and positions.

    Raises:
        ValueError: rows and where, or items and positions, do not fit together.
        IndexError: a row is none of items or positions.
    """
    if rows.shape != where.shape:
        raise ValueError(f"where must be {tuple(rows.shape)} as rows is, got {tuple(where.shape)}")
    if positions.dim() != 2 or positions.shape[1:] != items.shape[1:]:
        raise ValueError(f"positions must be (P, {items.shape[1]}) = (P, D), got {tuple(positions.shape)}")
    check_rows(rows, len(items))
    check_rows(where, len(positions))
    out: Tensor = _EmbedPositions.apply(rows.flatten(), where.flatten(), items, positions, threshold_of(dropout))  # type: ignore[no-untyped-call]  # torch's Function carries no types
    return out.view(*rows.shape, -1)


class _EmbedPositions(torch.autograd.Function):
    """apply(rows (M,), where (M,), items, positions, threshold) -> (M, D)."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, where: Tensor, items: Tensor, positions: Tensor, threshold: int) -> Tensor:
        from recbole_lisa.ops.numba_threads.encoder import embed, embed_in_parts

        out = items.new_empty(len(rows), items.shape[1])
        numbers = array(torch.tensor([0.0, scale_of(threshold)], dtype=items.dtype))
        ctx.drop = draw_seeds(1, threshold)[0], threshold, numbers
        ctx.sizes = len(items), len(positions)
        ctx.save_for_backward(rows, where)
        share(embed, embed_in_parts, len(out), *arrays(rows, where, items, positions), *ctx.drop, *targets(out))
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[None, None, Tensor, Tensor, None]:
        """Gradients by items and positions."""
        from recbole_lisa.ops.numba_threads.encoder import undo_embed, undo_embed_in_parts

        d_items, d_positions = (grad.new_zeros(size, grad.shape[1]) for size in ctx.sizes)
        read, sums = arrays(*ctx.saved_tensors, grad), targets(d_items, d_positions)
        share(undo_embed, undo_embed_in_parts, grad.shape[1], *read, *ctx.drop, *sums)
        return None, None, d_items, d_positions, None
