"""k-means of sign vectors under the Hamming distance, for each row of a batch."""

import torch
from torch import Tensor

from recbole_lisa.ops.checks import check_operands, check_range, check_right_padding, check_sizes
from recbole_lisa.ops.sorted_window import take_rows

EXACT_IN_FLOAT32 = 2**24
"""Whole numbers below this are exact in float32."""


def hash_signs(x: Tensor, planes: Tensor, offsets: Tensor) -> Tensor:
    """The side of each plane: x (..., D), normals (D, P), offsets (P,) -> (..., P), 1 if x planes > offsets or -1."""
    check_operands("x: floating-point ... D; planes: D P; offsets: P", x, planes, offsets)
    with torch.autocast(x.device.type, enabled=False):
        height = x.to(planes.dtype) @ planes - offsets
    return torch.where(height > 0, 1.0, -1.0).masked_fill(height.isnan(), torch.nan)


@torch.no_grad()
def hamming_kmeans(signs: Tensor, valid: Tensor, *, n_clusters: int, n_iterations: int) -> Tensor:
    """Lloyd's algorithm: the nearest centroid, then the majority of each bit; deterministic, O(L C P) an iteration.

    A row of l valid positions has min(C, l) clusters, which start at positions spread evenly over it. Ties go to the
    lower cluster, and in a vote to -1. A cluster without members keeps its centroid. n_iterations counts assignments;
    between two of them the centroids move.

    signs (N, L, P) are 1 or -1, valid (N, L) has padding on the right, which takes no part. Returns (N, L) int64 in
    0..C-1; at padding any number in that range.
    """
    check_operands("signs: floating-point N L+ P; valid: bool N L", signs, valid)
    check_sizes(n_clusters=n_clusters, n_iterations=n_iterations)
    check_right_padding(valid)
    check_range("the square of signs", signs.square(), 1, 1)
    n_clusters = min(n_clusters, signs.shape[1])
    counted = valid.unsqueeze(-1).to(signs.dtype)
    points = torch.cat([signs * counted, counted], dim=-1)  # (N, L, P + 1), the last to count members
    lengths = valid.sum(dim=1, keepdim=True)  # (N, 1)
    number = torch.arange(n_clusters, device=signs.device)
    exists = number < lengths  # (N, C)
    start = torch.where(exists, number * lengths // lengths.clamp(1, n_clusters), 0)
    centroids = take_rows(signs, start)  # (N, C, P)
    cluster = _nearest(points, centroids, exists)
    for _ in range(n_iterations - 1):
        centroids = _majorities(points, cluster, centroids)
        before, cluster = cluster, _nearest(points, centroids, exists)
        # A fixed point stays. On a GPU the check costs more than an iteration, as it waits for the device.
        if cluster.device.type == "cpu" and torch.equal(cluster, before):
            break
    return cluster


def _nearest(points: Tensor, centroids: Tensor, exists: Tensor) -> Tensor:
    """The existing centroid that agrees in most bits, the lowest among equals: (N, L)."""
    n_clusters, n_bits = centroids.shape[1:]
    # Agreement times C, plus C - 1 - c: whole numbers whose largest tells the cluster. None is larger than this:
    dtype = torch.float32 if n_clusters * (3 * n_bits + 2) < EXACT_IN_FLOAT32 else torch.float64
    rank = n_clusters - 1 - torch.arange(n_clusters, device=points.device)
    rank = torch.where(exists, rank, rank - n_clusters * (2 * n_bits + 1)).to(dtype)
    ranked = torch.cat([centroids.to(dtype) * n_clusters, rank.unsqueeze(-1)], dim=-1)  # (N, C, P + 1)
    with torch.autocast(points.device.type, enabled=False):
        best = (points.to(dtype) @ ranked.transpose(1, 2)).amax(dim=-1)  # (N, L)
    return n_clusters - 1 - best.long() % n_clusters


def _majorities(points: Tensor, cluster: Tensor, centroids: Tensor) -> Tensor:
    """Each cluster's majority in each bit; an empty one keeps its centroid: (N, C, P)."""
    n, n_clusters, _ = centroids.shape
    rows = (cluster + torch.arange(n, device=points.device).unsqueeze(1) * n_clusters).flatten()
    votes = points.new_zeros(n * n_clusters, points.shape[-1]).index_add_(0, rows, points.flatten(0, 1))
    votes = votes.view(n, n_clusters, points.shape[-1])
    majority = (votes[..., :-1] > 0).to(points.dtype) * 2 - 1
    return torch.where(votes[..., -1:] > 0, majority, centroids)
