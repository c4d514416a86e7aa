"""Spherical k-means: points of unit length, similarity by inner product."""

import torch
from torch import Tensor
from torch.nn.functional import normalize

from recbole_lisa.ops.row_blocks import choose_in_blocks


def similarity(x: Tensor, centroids: Tensor) -> Tensor:
    """Inner products, never in half precision: a choice must not depend on rounding.

    Args:
        x: (..., D), unit length.
        centroids: (C, D).

    Returns:
        (..., C).
    """
    with torch.autocast(x.device.type, enabled=False):
        return x.to(centroids.dtype) @ centroids.t()


def nearest(x: Tensor, centroids: Tensor) -> Tensor:
    """The most similar centroid, O(M C D); similarities exist for a block of points at a time.

    Args:
        x: (..., D), M points of unit length.
        centroids: (C, D).

    Returns:
        (...) int64 in 0..C-1.
    """
    cluster = choose_in_blocks(
        lambda rows: similarity(rows, centroids).argmax(dim=-1), x.flatten(0, -2), centroids.shape[0]
    )
    return cluster.view(x.shape[:-1])


def nearest_points(x: Tensor, valid: Tensor, centroids: Tensor, *, size: int) -> Tensor:
    """The valid positions most similar to each centroid, O(N L C D); for a block of centroids at a time.

    Args:
        x: (N, L, D), unit length.
        valid: (N, L) bool.
        centroids: (C, D).
        size: positions a centroid.

    Returns:
        (N, C, min(size, L)) int64 positions; L stands for none where too few are valid.
    """
    n, length = valid.shape

    def top(block: Tensor) -> Tensor:
        scores = similarity(x, block).masked_fill(~valid.unsqueeze(-1), -torch.inf).transpose(1, 2)  # (N, c, L)
        best = scores.topk(min(size, length), dim=-1)
        return best.indices.masked_fill(best.values == -torch.inf, length).transpose(0, 1)  # (c, N, w)

    return choose_in_blocks(top, centroids, n * length).transpose(0, 1)


def cluster_sums(x: Tensor, cluster: Tensor, n_clusters: int) -> Tensor:
    """Sum of each cluster's points and their number as a last column, so that processes can add both.

    Args:
        x: (M, D).
        cluster: (M,).
        n_clusters: C.

    Returns:
        (C, D + 1).
    """
    sums = x.new_zeros(n_clusters, x.shape[1]).index_add_(0, cluster, x)
    counts = torch.bincount(cluster, minlength=n_clusters).to(x.dtype)
    return torch.cat([sums, counts.unsqueeze(1)], dim=1)


def mean_directions(sums: Tensor, centroids: Tensor) -> Tensor:
    """Unit means of the clusters; an empty cluster keeps its centroid.

    Args:
        sums: (C, D + 1) of cluster_sums.
        centroids: (C, D).

    Returns:
        (C, D).
    """
    return torch.where(sums[:, -1:] > 0, normalize(sums[:, :-1], dim=1), centroids)
