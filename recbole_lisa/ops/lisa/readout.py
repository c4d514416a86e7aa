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


class ScoreTable(NamedTuple):
    """Rows to gather by flat query code b * W + q: exp(T - row maximum), or T itself when log_domain."""

    rows: Tensor
    log_domain: bool


_SPANS: MutableMapping[Tensor, tuple[int, float]] = WeakIdKeyDictionary()
"""(version, span) of tables on a GPU, so calls with the same table wait for the GPU once."""


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
    """Attention of one query a row over its histogram, from rows exp(T - row maximum); for inference.

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
