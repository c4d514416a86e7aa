"""Spherical k-means: points of unit length, similarity by inner product."""

import torch
from torch import Tensor
from torch.nn.functional import normalize

from recbole_lisa.ops.checks import MOST_CODEWORDS, check_operands, check_sizes
from recbole_lisa.ops.numba_threads import check_rows
from recbole_lisa.ops.row_blocks import choose_in_blocks, largest


def similarity(x: Tensor, centroids: Tensor) -> Tensor:
    """Inner products of x (..., D) and centroids (C, D): (..., C).

    Never in half precision: a choice must not depend on rounding.
    """
    check_operands("x: floating-point ... D; centroids: floating-point C+ D", x, centroids)
    with torch.autocast(x.device.type, enabled=False):
        return x.to(centroids.dtype) @ centroids.t()


def nearest(x: Tensor, centroids: Tensor) -> Tensor:
    """The most similar of centroids (C, D) for each of M points x (..., D) of unit length: (...) int64 in 0..C-1.

    O(M C D); similarities exist for a block of points at a time.
    """
    check_operands("x: floating-point ... D; centroids: floating-point C+ D", x, centroids)
    points = x.reshape(-1, x.shape[-1])
    cluster = choose_in_blocks(lambda rows: largest(similarity(rows, centroids)), points, len(centroids))
    return cluster.view(x.shape[:-1])


def nearest_points(x: Tensor, valid: Tensor, centroids: Tensor, *, size: int) -> Tensor:
    """The valid positions most similar to each centroid, O(N L C D); for a block of centroids at a time.

    x (N, L, D) has unit length; valid (N, L), centroids (C, D). Returns (N, C, min(size, L)) int64 positions; L stands
    for none where too few are valid.
    """
    check_operands("x: floating-point N L D; valid: bool N L", x, valid)
    check_sizes(size=size)
    n, length = valid.shape

    def top(block: Tensor) -> Tensor:
        scores = similarity(x, block).masked_fill(~valid.unsqueeze(-1), -torch.inf).transpose(1, 2)  # (N, c, L)
        best = scores.topk(min(size, length), dim=-1)
        return best.indices.masked_fill(best.values == -torch.inf, length).transpose(0, 1)  # (c, N, w)

    return choose_in_blocks(top, centroids, n * length).transpose(0, 1)


def cluster_sums(x: Tensor, cluster: Tensor, n_clusters: int) -> Tensor:
    """Sum of each cluster's points: x (M, D), cluster (M,) -> (C, D + 1).

    The last column is their number, so that processes can add both. A cluster outside 0..C-1 is an IndexError.
    """
    check_operands("x: floating-point M D; cluster: int64 M", x, cluster)
    check_sizes(1, MOST_CODEWORDS, n_clusters=n_clusters)
    check_rows(cluster, n_clusters, "cluster")
    sums = x.new_zeros(n_clusters, x.shape[1]).index_add_(0, cluster, x)
    counts = torch.bincount(cluster, minlength=n_clusters).to(x.dtype)
    return torch.cat([sums, counts.unsqueeze(1)], dim=1)


def mean_directions(sums: Tensor, centroids: Tensor) -> Tensor:
    """Unit means (C, D) of clusters from their cluster_sums; an empty cluster keeps its centroid (C, D)."""
    check_operands("centroids: C D; sums: C K", centroids, sums)
    if sums.shape[1] != centroids.shape[1] + 1:
        raise ValueError(f"sums must be (C, D + 1) with D = {centroids.shape[1]}, got {tuple(sums.shape)}")
    return torch.where(sums[:, -1:] != 0, normalize(sums[:, :-1], dim=1), centroids)
