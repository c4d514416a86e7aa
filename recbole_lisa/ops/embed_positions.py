"""What enters the encoder, dropout(item + position), as one autograd function of two compiled loops on the CPU."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from recbole_lisa.ops.dropout_bits import draw_seeds, scale_of, threshold_of
from recbole_lisa.ops.row_loops import array, check_rows, share


def embed_positions(rows: Tensor, items: Tensor, positions: Tensor, *, dropout: float) -> Tensor:
    """out[n, l] = dropout(items[rows[n, l]] + positions[l]).

    Args:
        rows: (N, L) rows of items, on the CPU.
        items: (U, D), float32 or float64.
        positions: (L, D), of the same dtype.
        dropout: probability, 0 for none.

    Returns:
        (N, L, D); differentiable once in items and positions.

    Raises:
        ValueError: positions are not one a column of rows.
        IndexError: a row is none of items.
    """
    if positions.shape != (rows.shape[1], items.shape[1]):
        raise ValueError(f"positions must be {(rows.shape[1], items.shape[1])} = (L, D), got {tuple(positions.shape)}")
    check_rows(rows, len(items))
    out: Tensor = _EmbedPositions.apply(rows, items, positions, threshold_of(dropout))  # type: ignore[no-untyped-call]  # torch's Function carries no types
    return out


class _EmbedPositions(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, items: Tensor, positions: Tensor, threshold: int) -> Tensor:
        from recbole_lisa.ops.row_loops.encoder import embed

        out = items.new_empty(*rows.shape, items.shape[1])
        ctx.seed, ctx.threshold, ctx.n_items = draw_seeds(1, threshold)[0], threshold, len(items)
        ctx.numbers = array(torch.tensor([0.0, scale_of(threshold)], dtype=items.dtype))
        ctx.save_for_backward(rows)
        read = [array(x) for x in (rows.flatten(), items, positions)]
        flat = array(out.view(-1, out.shape[2]))
        share(lambda i, j: embed(i, j, *read, ctx.seed, threshold, ctx.numbers, flat), len(flat))
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[None, Tensor, Tensor, None]:
        """Gradients by items and positions."""
        from recbole_lisa.ops.row_loops.encoder import undo_embed

        (rows,) = ctx.saved_tensors
        d_items = grad.new_zeros(ctx.n_items, grad.shape[2])
        d_positions = grad.new_zeros(grad.shape[1:])
        read = [array(x) for x in (rows.flatten(), grad.flatten(0, 1))]
        sums = [array(x) for x in (d_items, d_positions)]
        share(lambda i, j: undo_embed(i, j, *read, ctx.seed, ctx.threshold, ctx.numbers, *sums), grad.shape[2])
        return None, d_items, d_positions, None
