"""Slow, obviously right twins of the attention inside buckets and clusters. For tests only."""

import torch
from torch import Tensor

from recbole_lisa.ops.balanced_clusters import MEAN_EPSILON
from recbole_lisa.ops.sorted_window import SELF_LOGIT, Attended


def bucket_attention_quadratic(query: Tensor, key: Tensor, value: Tensor, bucket: Tensor, *, window: int) -> Attended:
    """sorted_window.bucket_attention as full attention under a mask, with an (L, L) matrix.

    Args:
        query: (G, L, D), scaled.
        key: (G, L, D).
        value: (G, L, D).
        bucket: (G, L).
        window: w, ranks back inside the bucket that a query sees.

    Returns:
        out (G, L, D) and log_mass (G, L).
    """
    position = torch.arange(bucket.shape[1])
    same = bucket.unsqueeze(2) == bucket.unsqueeze(1)  # (G, L, L)
    rank = (same & (position <= position.unsqueeze(1))).sum(dim=2)  # (G, L) members of the own bucket so far
    back = rank.unsqueeze(2) - rank.unsqueeze(1)
    logits = query @ key.transpose(1, 2)
    logits = logits.masked_fill(~(same & (back >= 0) & (back <= window)), torch.finfo(logits.dtype).min)
    logits = logits.masked_fill(torch.eye(len(position), dtype=torch.bool), SELF_LOGIT)
    return Attended(torch.softmax(logits, dim=2) @ value, torch.logsumexp(logits, dim=2))


def chunked_rounds_loop(
    query: Tensor, key: Tensor, value: Tensor, bucket: Tensor, lengths: Tensor, *, window: int
) -> Tensor:
    """sorted_window.chunked_round_attention and merge_rounds, one query at a time, over the real positions alone.

    Args:
        query: (N, L, D), scaled.
        key: (N, L, D).
        value: (N, L, D).
        bucket: (N, R, L).
        lengths: (N,).
        window: w.

    Returns:
        (N, L, D), 0 at padding.
    """
    out = torch.zeros_like(value)
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
    """balanced_clusters.balanced_cluster_attention, one query at a time.

    Args:
        query: (N, L, D), scaled.
        key: (N, L, D).
        value: (N, L, D).
        similarity: (N, L, C).
        valid: (N, L) bool.
        window: w, members of a cluster.

    Returns:
        (N, L, D).
    """
    out = torch.zeros_like(value)
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
