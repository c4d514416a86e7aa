"""Naive references of the operators other than LISA: slow, plain formulas, outside the wheel. For tests and benchmarks.

Arguments and results are those of the fast functions of `recbole_lisa.ops`.
"""

import math

import numpy as np
import torch
from torch import Tensor

from recbole_lisa.ops.balanced_clusters import MEAN_EPSILON
from recbole_lisa.ops.dropout_bits import Mask
from recbole_lisa.ops.sorted_window import SELF_LOGIT


def causal_softmax_attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Compute softmax(q k^T / sqrt(D) + causal mask) v, all (N, L, D)."""
    logits = query @ key.transpose(1, 2) / math.sqrt(query.shape[-1])
    future = torch.ones(logits.shape[-2:], dtype=torch.bool, device=logits.device).triu(diagonal=1)
    return logits.masked_fill(future, float("-inf")).softmax(dim=-1) @ value


def gated_recurrence(query: Tensor, key: Tensor, value: Tensor, gate: Tensor) -> tuple[Tensor, None]:
    """S_i = diag(exp gate_i) S_{i-1} + k_i v_i^T and S_i^T q_i / sqrt(K), step by step."""
    state = value.new_zeros(*key[:, 0].shape, value.shape[-1])  # (N, H, K, V)
    out = []
    for i in range(query.shape[1]):
        state = gate[:, i].exp().unsqueeze(-1) * state + key[:, i].unsqueeze(-1) * value[:, i].unsqueeze(-2)
        out.append((query[:, i].unsqueeze(-2) @ state).squeeze(-2) / math.sqrt(query.shape[-1]))
    return torch.stack(out, dim=1), None


def quantize(
    x: Tensor,
    codebooks: Tensor,
    *,
    bilinear: Tensor | None,
    similarity: str,
    temperature: float,
    residual: bool,
    hard: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """Residual or parallel encoding, one vector and one codebook at a time; hard codes are one-hot rows.

    Arguments as ops.quantize; returns codes (U, B), assignment (U, B, W), reconstruction (U, D).
    """
    codes, assignments, reconstructions = [], [], []
    for row in x:
        left, total, row_codes, row_p = row, torch.zeros_like(row), [], []
        for book in codebooks:
            if similarity == "euclidean":
                scores = -((left - book) ** 2).sum(dim=-1)
            else:
                scores = book @ (left @ bilinear if similarity == "bilinear" else left)
            p = torch.softmax(scores / temperature, dim=-1)
            if hard:  # one_hot(code) forward, the gradient of the softmax backward
                p = torch.nn.functional.one_hot(scores.argmax(), len(book)).to(p.dtype) + (p - p.detach())
            word = p @ book
            row_codes.append(scores.argmax())
            row_p.append(p)
            total = total + word
            left = left - word if residual else row
        codes.append(torch.stack(row_codes))
        assignments.append(torch.stack(row_p))
        reconstructions.append(total)
    return torch.stack(codes), torch.stack(assignments), torch.stack(reconstructions)


def dropout_mask(mask: Mask, n_rows: int, width: int) -> Tensor:
    """What encoder_kernels.fill_mask keeps, (n_rows, width) bool: the two halves of a hash of 32 bits serve a pair."""
    half = -(-width // 2)
    row, column = np.arange(n_rows, dtype=np.uint64)[:, None], np.arange(half, dtype=np.uint64)
    x = (row * np.uint64(half) + column).astype(np.uint32) ^ mask.seed[0]
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
        x = (x ^ (x >> np.uint32(shift))) * np.uint32(factor)
    x = (x ^ (x >> np.uint32(16))) + mask.seed[1]
    halves = np.concatenate([x & np.uint32(0xFFFF), x >> np.uint32(16)], axis=1)
    return torch.from_numpy(halves[:, :width] >= mask.threshold)


def hamming_kmeans_loop(signs: Tensor, valid: Tensor, *, n_clusters: int, n_iterations: int) -> Tensor:
    """hamming_kmeans.hamming_kmeans, one vector at a time, on whole numbers; 0 at padding."""
    out = torch.zeros(signs.shape[:2], dtype=torch.int64)
    for n, length in enumerate(valid.sum(dim=1).tolist()):
        points = [[int(bit) for bit in row] for row in signs[n, :length]]
        count = min(n_clusters, length)
        centroids = [points[c * length // count] for c in range(count)]
        for iteration in range(n_iterations):
            if iteration:
                for c in range(count):
                    members = [points[i] for i in range(length) if out[n, i] == c]
                    if members:
                        centroids[c] = [1 if sum(bits) > 0 else -1 for bits in zip(*members, strict=True)]
            for i, point in enumerate(points):
                distances = [sum(a != b for a, b in zip(point, centroid, strict=True)) for centroid in centroids]
                out[n, i] = distances.index(min(distances))
    return out


def clustered_attention_loop(
    query: Tensor, key: Tensor, value: Tensor, cluster: Tensor, valid: Tensor, *, n_top: int, causal: bool
) -> Tensor:
    """Both forms of clustered_attention, one query at a time, from cluster (N, L); 0 at padding."""
    rows = []
    for n, length in enumerate(valid.sum(dim=1).tolist()):
        out = [torch.zeros_like(value[n, 0]) for _ in range(query.shape[1])]
        for i in range(length):
            members = [j for j in range(length) if cluster[n, j] == cluster[n, i]]
            scores = key[n, :length] @ query[n, members].mean(dim=0)
            top = scores.topk(min(n_top, length)).indices.tolist()
            rest = [j for j in range(length) if j not in top]
            if causal:
                top = [j for j in top if j <= i]
                if top:
                    out[i] = torch.softmax(key[n, top] @ query[n, i], dim=0) @ value[n, top]
                continue
            weights = torch.softmax(scores, dim=0)
            sharp = torch.softmax(key[n, top] @ query[n, i], dim=0) @ value[n, top]
            out[i] = weights[rest] @ value[n, rest] + weights[top].sum() * sharp
        rows.append(torch.stack(out))
    return torch.stack(rows)


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
