"""Naive references of the attention inside buckets and clusters. For tests only.

Arguments and results are those of the fast functions.
"""

import math

import torch
from torch import Tensor

from recbole_lisa.ops.balanced_clusters import MEAN_EPSILON
from recbole_lisa.ops.sorted_window import SELF_LOGIT


def bucket_attention_quadratic(query: Tensor, key: Tensor, value: Tensor, bucket: Tensor, *, window: int) -> Tensor:
    """sorted_window.bucket_attention as full attention under a mask, with an (L, L) matrix a round."""
    position = torch.arange(bucket.shape[2])
    same = bucket.unsqueeze(3) == bucket.unsqueeze(2)  # (N, R, L, L)
    rank = (same & (position <= position.unsqueeze(1))).sum(dim=3)  # (N, R, L) members of its bucket so far
    back = rank.unsqueeze(3) - rank.unsqueeze(2)
    meetings = (same & (back > 0) & (back <= window)).sum(dim=1)  # (N, L, L) rounds in which a pair meets
    meetings = meetings.masked_fill(position >= position.unsqueeze(1), 0)
    logits = query @ key.transpose(1, 2) / math.sqrt(query.shape[-1]) + meetings.to(query.dtype).log()
    logits = logits.masked_fill(torch.eye(len(position), dtype=torch.bool), SELF_LOGIT)
    return torch.softmax(logits, dim=2) @ value


def chunked_rounds_loop(
    query: Tensor, key: Tensor, value: Tensor, bucket: Tensor, lengths: Tensor, *, window: int
) -> Tensor:
    """sorted_window.chunked_round_attention, one query at a time, at valid positions; 0 at padding."""
    out, query = torch.zeros_like(value), query / math.sqrt(query.shape[-1])
    for n, length in enumerate(lengths.tolist()):
        ring = []
        for buckets in bucket[n].tolist():
            order = sorted(range(length), key=buckets.__getitem__)
            ring += [order[i : i + window] for i in range(0, length, window)]
        for t in range(length):
            logits, seen = [], []
            for i in (i for i, chunk in enumerate(ring) if t in chunk):
                for s in (s for s in [*ring[i - 1], *ring[i]] if s <= t):
                    logits.append(query.new_tensor(SELF_LOGIT) if s == t else query[n, t] @ key[n, s])
                    seen.append(value[n, s])
            out[n, t] = torch.softmax(torch.stack(logits), dim=0) @ torch.stack(seen)
    return out


def balanced_clusters_loop(
    query: Tensor, key: Tensor, value: Tensor, similarity: Tensor, valid: Tensor, *, window: int
) -> Tensor:
    """balanced_clusters.balanced_cluster_attention, one query at a time, from similarity (N, L, C) to the centroids."""
    out, query = torch.zeros_like(value), query / math.sqrt(query.shape[-1])
    for n, length in enumerate(valid.sum(dim=1).tolist()):
        clusters = [set(column.topk(min(window, length)).indices.tolist()) for column in similarity[n, :length].t()]
        for t in range(length):
            own = [sorted(s for s in cluster if s <= t) for cluster in clusters if t in cluster]
            total = torch.zeros_like(value[n, t])
            for seen in own:
                logits = torch.stack(
                    [query.new_tensor(SELF_LOGIT) if s == t else query[n, t] @ key[n, s] for s in seen]
                )
                total = total + torch.softmax(logits, dim=0) @ value[n, seen]
            out[n, t] = total / (len(own) + MEAN_EPSILON)
    return out
