"""Attention inside clusters of equal size, each made of the positions nearest to a centroid: the published routing."""

import torch
from torch import Tensor

from recbole_lisa.ops.sorted_window import chunk_logits, split, take_rows

MEAN_EPSILON = 1e-5
"""Added to the number of clusters that a position is in, as in the public implementation."""


def balanced_cluster_attention(
    query: Tensor, key: Tensor, value: Tensor, similarity: Tensor, valid: Tensor, *, window: int
) -> Tensor:
    """Each cluster takes its `window` nearest real positions and attends among them, to earlier ones only.

    A position in several clusters gets the mean of its outputs, a position in none gets 0. Sees the future: whether a
    position is among the nearest depends on the whole sequence.

    Args:
        query: (N, L, D).
        key: (N, L, D).
        value: (N, L, D).
        similarity: (N, L, C) of each position to each centroid.
        valid: (N, L) bool.
        window: w, members of a cluster.

    Returns:
        (N, L, D).
    """
    n, length, n_clusters = similarity.shape
    members = _nearest_positions(similarity, valid, min(window, length))  # (N, C, w), L where too few are real
    real = members < length
    position = members.clamp_max(length - 1)

    def chunks(x: Tensor) -> Tensor:
        return split(take_rows(x, position.flatten(1)), position.shape[2])  # (N, C, w, D)

    query_at, key_at = members.unsqueeze(-1), members.unsqueeze(-2)
    logits = chunk_logits(chunks(query), chunks(key), visible=key_at < query_at, own=key_at == query_at)
    out = (torch.softmax(logits, dim=-1).to(value.dtype) @ chunks(value)).flatten(1, 2)  # (N, C w, D)
    real, position = real.flatten(1), position.flatten(1)
    count = out.new_zeros(n, length).scatter_add_(1, position, real.to(out.dtype))
    rows = (position + torch.arange(n, device=position.device).unsqueeze(1) * length).flatten()
    total = out.new_zeros(n * length, out.shape[-1]).index_add(0, rows, (out * real.unsqueeze(-1)).flatten(0, 1))
    return total.view(n, length, -1) / (count + MEAN_EPSILON).unsqueeze(-1)


def _nearest_positions(similarity: Tensor, valid: Tensor, size: int) -> Tensor:
    """(N, C, size) positions of each cluster's nearest real positions; L stands for none."""
    scores = similarity.masked_fill(~valid.unsqueeze(-1), -torch.inf).transpose(1, 2)  # (N, C, L)
    top = scores.topk(size, dim=-1)
    return top.indices.masked_fill(top.values == -torch.inf, valid.shape[1])
