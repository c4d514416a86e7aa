r"""Attention of a query codeword over a codeword histogram: A = F * exp(T[q]) / Z (LISA, Algorithm 1, lines 7-9).

Two exact forms. When the table's rows span less than the dtype's safe range, exp(T - row maximum) is taken once
for the whole table, as in the paper. Otherwise a codeword that is present could underflow beside an absent one
with a larger score, and the product is formed as softmax(log F + T[q]).
"""

from collections.abc import MutableMapping

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

SAFE_SPAN = {torch.float32: 50.0, torch.float64: 500.0}
"""Largest spread of a row of T for which exp(T - row maximum) * F keeps full precision."""


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


def score_rows(table: Tensor) -> Tensor:
    """exp(T - row maximum) of a table (B, W, W), to gather by flat query code b * W + q: (B * W, W)."""
    rows = table.flatten(0, 1)
    return (rows - rows.amax(dim=-1, keepdim=True)).exp()


def read_scored(histogram: Tensor, query: Tensor, rows: Tensor, values: Tensor) -> Tensor:
    """Attention of one query a row over its histogram, from score_rows (B * W, W); for inference.

    histogram (N, B, W), query (N, B) flat codes b * W + q, values (B * W, D) -> (N, D) in the dtype of values; 0 where
    the histogram is empty.
    """
    weights = rows.index_select(0, query.flatten()).view(histogram.shape) * histogram
    weights /= weights.sum(dim=-1, keepdim=True).clamp_min_(torch.finfo(weights.dtype).tiny)
    return weights.flatten(1).to(values.dtype) @ values
