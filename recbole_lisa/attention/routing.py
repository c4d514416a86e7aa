"""Routing Transformer: attention among positions of the same k-means cluster (Roy et al., 2021)."""

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from recbole_lisa.attention.base import (
    Attention,
    check_causality,
    final_positions,
    project_exactly,
    take_positions,
)
from recbole_lisa.ops.balanced_clusters import balanced_cluster_attention
from recbole_lisa.ops.kmeans import cluster_sums, mean_directions, nearest, similarity
from recbole_lisa.ops.sorted_window import bucket_attention, bucket_attention_last

LLOYD_ITERATIONS = 10
"""k-means iterations over the first batch."""


class RoutingAttention(Attention):
    r"""Attention inside clusters of shared queries and keys, O(L (C + w) D) with C = ceil(L_max / w) clusters.

        q = W_qk x,   k = q / |q|,   cluster(x) = argmax_c k mu_c
        out = softmax(q k^T / sqrt(D) over the visible members of the cluster) v

    A position sees itself only when it sees nothing else. The centroids mu (C, D) are no parameters: each training
    batch moves them, after it was routed, by an exponential average towards the batch's own cluster means. The first
    batch, which random centroids route, sets them by k-means. Over several processes the means are those of all.

    Args:
        hidden_size: D.
        max_length: L_max, fixes the number of clusters; longer sequences are served too.
        window_size: w, positions that a query may see, and expected size of a cluster.
        causality: strict: a position belongs to its nearest centroid and sees at most w earlier members; published:
            each cluster takes the w positions nearest to it in the whole sequence, so that which earlier positions are
            seen depends on the future; a position in several clusters gets their mean, one in none gets 0.
        centroid_decay: weight of the old centroids in the average.
        centroid_seed: seed of the first centroids.

    Raises:
        ValueError: window_size below 1, centroid_decay outside [0, 1], or an unknown causality.
    """

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
        super().__init__()
        if window_size < 1:
            raise ValueError(f"window_size must be at least 1, got {window_size}")
        if not 0 <= centroid_decay <= 1:
            raise ValueError(f"centroid_decay must be in [0, 1], got {centroid_decay}")
        self.sees_future = check_causality(causality, ("strict", "published")) == "published"
        self.window_size = window_size
        self.centroid_decay = centroid_decay
        self.query_key, self.value = (nn.Linear(hidden_size, hidden_size, bias=False) for _ in range(2))
        self.output = nn.Linear(hidden_size, hidden_size)
        generator = torch.Generator().manual_seed(centroid_seed)
        centroids = torch.randn(math.ceil(max_length / window_size), hidden_size, generator=generator)
        self.centroids: Tensor
        self.centroids_are_set: Tensor
        self.register_buffer("centroids", normalize(centroids, dim=1))
        self.register_buffer("centroids_are_set", torch.tensor(False))

    def forward(self, x: Tensor, valid: Tensor) -> Tensor:
        """Attend at every position: x (N, L, D), valid (N, L) -> (N, L, D)."""
        query, key = self._query_and_key(x)
        value, nearness = self.value(x), similarity(key.detach(), self.centroids)  # (N, L, C)
        cluster = self._clusters(nearness, valid)  # (N, L)
        if self.sees_future:
            attended = balanced_cluster_attention(query, key, value, nearness, valid, window=self.window_size)
        else:
            attended = bucket_attention(query, key, value, cluster.unsqueeze(1), window=self.window_size)
        self._learn_centroids(key, cluster)
        return self._project(attended) * valid.unsqueeze(-1)

    def last(self, x: Tensor, valid: Tensor) -> Tensor:
        """Attend at the final real position only: x (N, L, D), valid (N, L) -> (N, D); O(L C D) when strict."""
        if self.sees_future:
            return super().last(x, valid)
        (query, key), final = self._query_and_key(x), final_positions(valid)
        cluster = self._clusters(similarity(key.detach(), self.centroids), valid)
        attended = bucket_attention_last(
            take_positions(query, final), key, self.value(x), cluster.unsqueeze(1), final, window=self.window_size
        )
        self._learn_centroids(key, cluster)
        return self._project(attended) * valid.any(dim=1, keepdim=True)

    def commitment(self, x: Tensor, valid: Tensor) -> Tensor:
        """Mean squared distance of the unit keys k to their centroids mu, the auxiliary loss that trains the routing.

        |k - mu|^2 = |k|^2 - 2 k mu + |mu|^2, so that one similarity a position is all it takes.

        Args:
            x: (N, L, D), what forward attends over.
            valid: (N, L).

        Returns:
            Scalar; 0 when nothing is real.
        """
        key = self._query_and_key(x)[1]
        nearness, cluster = similarity(key, self.centroids).max(dim=-1)  # (N, L)
        distance = key.square().sum(dim=-1) - 2 * nearness + self.centroids.square().sum(dim=1)[cluster]
        return torch.sum(distance * valid) / (valid.sum().clamp_min(1) * key.shape[-1])

    def _query_and_key(self, x: Tensor) -> tuple[Tensor, Tensor]:
        query = project_exactly(self.query_key, x)
        return query, normalize(query, dim=-1)

    def _clusters(self, nearness: Tensor, valid: Tensor) -> Tensor:
        """(N, L) cluster numbers; padding has the one behind the last."""
        return nearness.argmax(dim=-1).masked_fill(~valid, self.centroids.shape[0])

    @torch.no_grad()
    def _learn_centroids(self, key: Tensor, cluster: Tensor) -> None:
        """In training, move the centroids towards the means of this batch, which they have routed already."""
        if not self.training:
            return
        key, cluster = key.flatten(0, -2).to(self.centroids.dtype), cluster.flatten()  # (N L, D), (N L,)
        if self.centroids_are_set:
            means = self._batch_means(key, cluster, self.centroids)
            self.centroids.lerp_(means, 1 - self.centroid_decay)
            return
        points = key[cluster < self.centroids.shape[0]]
        centroids = self._starting_points(points)
        for _ in range(LLOYD_ITERATIONS):
            centroids = self._batch_means(points, nearest(points, centroids), centroids)
        self.centroids.copy_(centroids)
        self.centroids_are_set.fill_(True)

    def _starting_points(self, points: Tensor) -> Tensor:
        """One centroid from each of C equal steps through the batch's points; those of the first process for all."""
        if not len(points):
            return self.centroids.clone()
        n_clusters = self.centroids.shape[0]
        steps = torch.arange(n_clusters, device=points.device) * len(points) // n_clusters
        centroids = points[steps]
        if _several_processes():
            torch.distributed.broadcast(centroids, src=0)
        return centroids

    @staticmethod
    def _batch_means(points: Tensor, cluster: Tensor, centroids: Tensor) -> Tensor:
        sums = cluster_sums(points, cluster, centroids.shape[0] + 1)[:-1]
        if _several_processes():
            torch.distributed.all_reduce(sums)
        return mean_directions(sums, centroids)

    def _project(self, attended: Tensor) -> Tensor:
        out: Tensor = self.output(attended)
        return out


def _several_processes() -> bool:
    return torch.distributed.is_available() and torch.distributed.is_initialized()
