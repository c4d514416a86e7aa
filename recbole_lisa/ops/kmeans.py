"""Spherical k-means: points and centroids of unit length, similarity by inner product."""

import torch
from torch import Tensor
from torch.nn.functional import normalize


def similarity(x: Tensor, centroids: Tensor) -> Tensor:
    """Inner products, never in half precision: what is chosen by them must not hang on rounding.

    Args:
        x: (..., D), unit length.
        centroids: (C, D), unit length.

    Returns:
        (..., C).
    """
    with torch.autocast(x.device.type, enabled=False):
        return x.to(centroids.dtype) @ centroids.t()


def nearest(x: Tensor, centroids: Tensor) -> Tensor:
    """The most similar centroid.

    Args:
        x: (..., D), unit length.
        centroids: (C, D), unit length.

    Returns:
        (...) int64 in 0..C-1.
    """
    return similarity(x, centroids).argmax(dim=-1)


def cluster_sums(x: Tensor, cluster: Tensor, n_clusters: int) -> Tensor:
    """Sum of each cluster's points with their number behind, so that both add up over processes.

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
