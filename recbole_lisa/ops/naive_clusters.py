"""Naive references of the clustered attention and its k-means. For tests only."""

import torch
from torch import Tensor


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
