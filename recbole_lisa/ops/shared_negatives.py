"""Sums of losses over positions that share their negatives: one matrix product, no (M, K) tensor beyond a block."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

BLOCK_ELEMENTS = 2**18
"""Scores held at once: 1 MB in float32, near the cache."""

Term = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor, Tensor]]
"""Scores (m, K), target scores (m,), counts (K,) -> sum of losses, gradients by both kinds of scores. May overwrite."""


def softmax_term(scores: Tensor, positive: Tensor, counts: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Sum over m of log(exp p_m + sum_k c_k exp s_mk) - p_m."""
    peak = torch.maximum(scores.amax(dim=1), positive)
    weights, own = scores.sub_(peak.unsqueeze(1)).exp_().mul_(counts), (positive - peak).exp()
    mass = weights.sum(dim=1) + own
    return (mass.log() + peak - positive).sum(), weights.div_(mass.unsqueeze(1)), own / mass - 1


def sigmoid_term(scores: Tensor, positive: Tensor, counts: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Sum over m and k of c_k softplus(s_mk); target scores do not count."""
    total = (torch.nn.functional.softplus(scores) * counts).sum()
    return total, scores.sigmoid_().mul_(counts), torch.zeros_like(positive)


class _SharedNegatives(torch.autograd.Function):
    """The gradients of a sum are known as soon as a block's scores are, so forward takes them and keeps no scores."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        vectors: Tensor,
        positive: Tensor,
        log_q: Tensor | None,
        counts: Tensor,
        own: Tensor,
        term: Term,
    ) -> Tensor:
        d_hidden, d_vectors, d_positive = map(torch.zeros_like, (hidden, vectors, positive))
        total = positive.new_zeros(())
        rows = max(BLOCK_ELEMENTS // len(vectors), 1)
        for first in range(0, len(hidden), rows):
            block = slice(first, first + rows)
            scores = (hidden[block] @ vectors.t()).to(total.dtype)  # (m, K)
            if log_q is not None:
                scores.sub_(log_q)
            hit = own[block].ge(0).nonzero().squeeze(1)
            scores[hit, own[block][hit]] = -torch.inf
            loss, d_scores, d_positive[block] = term(scores, positive[block], counts)
            total += loss
            d_scores = d_scores.to(hidden.dtype)
            torch.mm(d_scores, vectors, out=d_hidden[block])
            d_vectors.addmm_(d_scores.t(), hidden[block])
        ctx.save_for_backward(d_hidden, d_vectors, d_positive)
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return (*(d * grad.to(d.dtype) for d in ctx.saved_tensors), None, None, None, None)


def shared_negatives_sum(
    term: Term, hidden: Tensor, table: Tensor, positive: Tensor, target: Tensor, negative: Tensor, log_q: Tensor | None
) -> Tensor:
    """Sum of a term over M positions; where a position's target is a negative, it is left out exactly.

    Args:
        term: softmax_term or sigmoid_term.
        hidden: (M, D).
        table: (U, D) item vectors.
        positive: (M,) scores of the targets, in float32 or wider.
        target: (M,) rows of the table.
        negative: (K,) rows of the table; a row that is drawn c times counts c times.
        log_q: (U,) is subtracted from the scores of the negatives; None for zeros.

    Returns:
        Scalar in the type of positive.
    """
    columns, counts = torch.unique(negative, return_counts=True)
    column_of = torch.full((len(table),), -1, device=table.device)
    column_of[columns] = torch.arange(len(columns), device=table.device)
    with torch.autocast(hidden.device.type, enabled=False):
        vectors = table.index_select(0, columns).to(hidden.dtype)
        log_q = None if log_q is None else log_q[columns]
        operands = hidden, vectors, positive, log_q, counts.to(positive.dtype), column_of[target]
        total: Tensor = _SharedNegatives.apply(*operands, term)  # type: ignore[no-untyped-call]  # torch's is untyped
    return total
