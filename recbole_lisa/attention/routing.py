"""Routing Transformer: attention among positions of the same k-means cluster (Roy et al., 2021)."""

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from recbole_lisa.attention.base import Attention, final_positions, project_exactly, take_positions, zero_padding
from recbole_lisa.ops.balanced_clusters import balanced_cluster_attention
from recbole_lisa.ops.checks import check_sizes
from recbole_lisa.ops.kmeans import cluster_sums, mean_directions, nearest, nearest_points
from recbole_lisa.ops.sorted_window import bucket_attention, bucket_attention_last

LLOYD_ITERATIONS = 10
"""k-means iterations over the first batch."""


class RoutingAttention(Attention):
    r"""Attention inside clusters of shared queries and keys.

        q = W_qk x,   k = q / |q|,   cluster(x) = argmax_c k mu_c
        out = softmax(q k^T / sqrt(D) over the visible members of the cluster) v

    A position sees itself only if it sees no other position. The centroids mu (C, D), C = ceil(L_max / w), are not
    parameters: after a training batch is routed, an exponential average moves them towards the directions of its
    cluster means. As in the public implementation, the average is not normalised again. The first batch with an item
    is routed by random centroids and then sets the centroids by k-means. With several processes, means are over the
    batches of all processes.

    O(L (C + w) D) time: linear in L for a given L_max, and quadratic if L_max grows with L and w does not (the paper's
    w = sqrt(L) makes it L^1.5). Memory is always linear in L: similarities to centroids exist for one block of
    positions or centroids at a time.

    Args:
        max_length: L_max, fixes the number of clusters; longer sequences work, too.
        window_size: w, positions that a query may see, and expected size of a cluster.
        causality: strict: a position belongs to its nearest centroid and sees at most w earlier members; published:
            each cluster takes the w positions nearest to it in the whole sequence, so that which earlier positions are
            seen depends on the future; a position in several clusters gets their mean, one in none gets 0.
        centroid_decay: weight of the old centroids in the average.
        centroid_seed: seed of the first centroids.

    Raises:
        ValueError: as Attention, or centroid_decay outside [0, 1].
    """

    compiles = False

    def __init__(
        self,
        *,
        hidden_size: int,
        max_length: int,
        window_size: int = 32,
        causality: str = "strict",
        centroid_decay: float = 0.999,
        centroid_seed: int = 0,
    ) -> None:
        super().__init__(hidden_size)
        check_sizes(max_length=max_length, window_size=window_size)
        if not 0 <= centroid_decay <= 1:
            raise ValueError(f"centroid_decay must be in [0, 1], got {centroid_decay}")
        self.sees_future = self.is_published(causality)
        self.window_size = window_size
        self.centroid_decay = centroid_decay
        self.query_key, self.value = (nn.Linear(hidden_size, hidden_size, bias=False) for _ in range(2))
        self.output = nn.Linear(hidden_size, hidden_size)
        generator = torch.Generator().manual_seed(centroid_seed)
        centroids = torch.randn(math.ceil(max_length / window_size), hidden_size, generator=generator)
        self.centroids = nn.Buffer(normalize(centroids, dim=1))
        self.centroids_are_set = nn.Buffer(torch.tensor(False))

    def everywhere(self, x: Tensor, valid: Tensor) -> Tensor:
        """Attend at every position: x (N, L, D), valid (N, L) -> (N, L, D)."""
        (query, key), value = self._query_and_key(x), self.value(x)
        cluster = self._clusters(key, valid)  # (N, L)
        if self.sees_future:
            members = nearest_points(key.detach(), valid, self.centroids, size=self.window_size)  # (N, C, w)
            attended = balanced_cluster_attention(query, key, value, members)
        else:
            attended = bucket_attention(query, key, value, cluster.unsqueeze(1), window=self.window_size)
        self._learn_centroids(key, cluster)
        return self.project(attended)

    def at_last(self, x: Tensor, valid: Tensor) -> Tensor:
        """Attend at the final item only: x (N, L, D), valid (N, L) -> (N, D); O(L C D) when strict."""
        if self.sees_future:
            return super().at_last(x, valid)
        (query, key), final = self._query_and_key(x), final_positions(valid)
        query, cluster = take_positions(query, final), self._clusters(key, valid)
        attended = bucket_attention_last(
            query, key, self.value(x), cluster.unsqueeze(1), final, window=self.window_size
        )
        self._learn_centroids(key, cluster)
        return self.project(attended)

    def commitment(self, x: Tensor, valid: Tensor) -> Tensor:
        """Mean squared distance of the unit keys k to their centroids mu, the auxiliary loss that trains the routing.

        x (N, L, D) and valid (N, L) as in forward; 0 for padding only.
        """
        key = self._query_and_key(zero_padding(x, valid))[1]
        centroid = self.centroids.index_select(0, nearest(key.detach(), self.centroids).flatten()).view_as(key)
        distance = (key.to(centroid.dtype) - centroid).square().sum(dim=-1)  # (N, L)
        return torch.sum(distance * valid) / (valid.sum().clamp_min(1) * key.shape[-1])

    def _query_and_key(self, x: Tensor) -> tuple[Tensor, Tensor]:
        query = project_exactly(self.query_key, x)
        return query, normalize(query, dim=-1)

    def _clusters(self, key: Tensor, valid: Tensor) -> Tensor:
        """(N, L) cluster numbers; padding has the number after the last cluster's."""
        return nearest(key.detach(), self.centroids).masked_fill(~valid, self.centroids.shape[0])

    @torch.no_grad()
    def _learn_centroids(self, key: Tensor, cluster: Tensor) -> None:
        """In training, move the centroids towards the means of this batch, after they have routed it."""
        if not self.training:
            return
        key, cluster = key.flatten(0, -2).to(self.centroids.dtype), cluster.flatten()  # (N L, D), (N L,)
        if self.centroids_are_set:
            self.centroids.lerp_(self._batch_means(key, cluster, self.centroids), 1 - self.centroid_decay)
            return
        points = key[cluster < self.centroids.shape[0]]
        centroids = self._starting_points(points)
        if centroids is None:
            return
        for _ in range(LLOYD_ITERATIONS):
            centroids = self._batch_means(points, nearest(points, centroids), centroids)
        self.centroids.copy_(centroids)
        self.centroids_are_set.fill_(True)

    def _starting_points(self, points: Tensor) -> Tensor | None:
        """C points at equal steps through the batch, or mean directions over processes; None if none has a point."""
        n_clusters = self.centroids.shape[0]
        start = torch.zeros_like(self.centroids)
        if len(points):
            start = points[torch.arange(n_clusters, device=points.device) * len(points) // n_clusters]
        counts = start.new_full((n_clusters, 1), float(len(points)))
        sums = self.sum_over_processes(torch.cat([start, counts], dim=1))  # (C, D + 1)
        return mean_directions(sums, self.centroids) if sums[0, -1] > 0 else None

    def _batch_means(self, points: Tensor, cluster: Tensor, centroids: Tensor) -> Tensor:
        sums = self.sum_over_processes(cluster_sums(points, cluster, centroids.shape[0] + 1)[:-1])
        return mean_directions(sums, centroids)
