r"""Attention of a query codeword over a codeword histogram: A = F * exp(T[q]) / Z (LISA, Algorithm 1, lines 7-9).

Two exact forms. When the table's rows span less than the dtype's safe range, exp(T - row maximum) is taken once
for the whole table, as in the paper. Otherwise a codeword that is present could underflow beside an absent one
with a larger score, and the product is formed as softmax(log F + T[q]).
"""

from collections.abc import MutableMapping
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

SAFE_SPAN = {torch.float32: 50.0, torch.float64: 500.0}
"""Largest spread of a row of T for which exp(T - row maximum) * F keeps full precision."""
MAX_SLOPE_EXPONENT = {torch.float32: 80.0, torch.float64: 700.0}
"""d A / d F = exp(T) / Z of an absent codeword can exceed the dtype; its exponent is cut here to stay finite."""


class ScoreTable(NamedTuple):
    """Rows to gather by flat query code b * W + q: exp(T - row maximum), or T itself when log_domain."""

    rows: Tensor
    log_domain: bool


_SPANS: MutableMapping[Tensor, tuple[int, float]] = WeakIdKeyDictionary()
"""(version, span) of tables on a GPU, so that calls with the same table wait for the GPU only once."""


def row_span(table: Tensor) -> float:
    """Largest difference between two scores of one query, over all rows of a table (B, W, W)."""
    remembered = table.is_cuda and not table.is_inference()
    if remembered and (known := _SPANS.get(table)) is not None and known[0] == table._version:
        return known[1]
    low, high = table.detach().aminmax(dim=-1)
    span = float((high.float() - low.float()).amax())
    if remembered:
        _SPANS[table] = (table._version, span)
    return span


def score_table(table: Tensor, span: float) -> ScoreTable:
    """Prepare T for gathering.

    Args:
        table: (B, W, W) raw scaled inner products, float32 or float64.
        span: its row_span.

    Returns:
        ScoreTable with rows (B * W, W).
    """
    rows = table.flatten(0, 1)
    if span > SAFE_SPAN[table.dtype]:
        return ScoreTable(rows, log_domain=True)
    return ScoreTable((rows - rows.amax(dim=-1, keepdim=True)).exp(), log_domain=False)


def read_scored(histogram: Tensor, query: Tensor, scores: ScoreTable, values: Tensor) -> Tensor:
    """Attention of one query a row over its histogram, with exp(T - row maximum) at hand; for inference.

    Args:
        histogram: (N, B, W), float32 or float64.
        query: (N, B) flat query codes b * W + q.
        scores: prepared table, not in the log domain.
        values: (B * W, D).

    Returns:
        (N, D) in the dtype of values; zeros where the histogram is empty.
    """
    weights = scores.rows.index_select(0, query.flatten()).view(histogram.shape) * histogram
    weights /= weights.sum(dim=-1, keepdim=True).clamp_min_(torch.finfo(weights.dtype).tiny)
    return weights.flatten(1).to(values.dtype) @ values


def attention_weights(
    histogram: Tensor, query: Tensor, scores: ScoreTable, *, weights: Tensor, gathered: Tensor
) -> Tensor:
    """Normalised attention over codewords, and what its slope d A / d F = exp(T[q]) / Z is made of.

    Args:
        histogram: (M * B, W) codeword histograms F.
        query: (M * B,) flat query codes b * W + q.
        scores: prepared table.
        weights: (M * B, W), overwritten with A; rows of zeros where the histogram is empty.
        gathered: (M * B, W), overwritten; times the returned scale it is the slope, up to the normaliser's own term.

    Returns:
        (M * B, 1) scale.
    """
    torch.index_select(scores.rows, 0, query, out=gathered)
    if not scores.log_domain:
        torch.mul(gathered, histogram, out=weights)
        # A product with ones: torch's sum over a short last dimension takes twice as long.
        total = (weights @ weights.new_ones(weights.shape[1])).unsqueeze(1)
        scale = total.clamp_min_(torch.finfo(weights.dtype).tiny).reciprocal_()
        weights.mul_(scale)
        return scale
    torch.log(histogram, out=weights).add_(gathered)
    total = weights.logsumexp(dim=-1, keepdim=True)
    total = torch.where(torch.isfinite(total), total, torch.zeros_like(total))
    weights.sub_(total).exp_()
    gathered.sub_(total).clamp_max_(MAX_SLOPE_EXPONENT[gathered.dtype]).exp_()
    return torch.ones_like(total)
