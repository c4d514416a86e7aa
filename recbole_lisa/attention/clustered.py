"""Improved clustered attention: queries are clustered, each cluster chooses its keys (Vyas et al., 2020)."""

import math

import torch
from torch import Tensor, nn

from recbole_lisa.attention.base import Attention, final_positions, project_exactly
from recbole_lisa.ops.checks import check_sizes
from recbole_lisa.ops.clustered_attention import (
    Groups,
    bidirectional_clustered_attention,
    causal_clustered_attention,
    cluster_means,
    group_queries,
)
from recbole_lisa.ops.hamming_kmeans import hamming_kmeans, hash_signs

NO_STRICT_FORM = "no cheap strict form of clustered attention is known"


class ClusteredAttention(Attention):
    r"""Attention to the K best keys of a query's cluster, O(L (C (P + D) + K D)).

        c(i) = k-means_C(sign(q_i planes - offsets)),   m_c = mean q of cluster c,   top_c = topk_j(m_c k_j)
        out_i = softmax over { j in top_c(i), j <= i } of q_i k_j / sqrt(D), times v_j;   0 when all are later

    This is the causal form of the public implementation. It sees the future: clusters, means and top keys depend on
    the whole sequence. At the final item this does not matter, as nothing is later. The bidirectional form is that
    of the method's paper: keys outside top_c get the weights of m_c.

    These deviations from the public implementation make a row's output independent of its batch: planes are drawn
    once from a seed and saved, not in each call; k-means starts at positions spread evenly over the items; an empty
    cluster keeps its centroid; a row of l items has min(C, l) clusters and min(K, l) top keys.

    n_clusters is C, n_top_keys K, n_hash_planes P. n_kmeans_iterations counts assignments to clusters; hash_seed is
    that of planes and offsets. The only causality is published; bidirectional: attend to all items.
    """

    remedy = NO_STRICT_FORM
    compiles = False

    def __init__(
        self,
        *,
        hidden_size: int,
        n_clusters: int = 100,
        n_top_keys: int = 32,
        n_hash_planes: int = 63,
        n_kmeans_iterations: int = 10,
        hash_seed: int = 0,
        causality: str = "published",
        bidirectional: bool = False,
    ) -> None:
        super().__init__(hidden_size)
        check_sizes(n_clusters=n_clusters, n_top_keys=n_top_keys)
        check_sizes(n_hash_planes=n_hash_planes, n_kmeans_iterations=n_kmeans_iterations)
        if causality != "published":
            raise ValueError(f"causality is {causality!r}, but {NO_STRICT_FORM}: leave it 'published'")
        self.is_causal = self.sees_future = not bidirectional
        self.n_clusters = n_clusters
        self.n_top_keys = n_top_keys
        self.n_kmeans_iterations = n_kmeans_iterations
        self._attention = bidirectional_clustered_attention if bidirectional else causal_clustered_attention
        self.query, self.key, self.value, self.output = (nn.Linear(hidden_size, hidden_size) for _ in range(4))
        generator = torch.Generator().manual_seed(hash_seed)
        self.planes = nn.Buffer(torch.randn(hidden_size, n_hash_planes, generator=generator))
        self.offsets = nn.Buffer(torch.randn(n_hash_planes, generator=generator))

    def everywhere(self, x: Tensor, valid: Tensor) -> Tensor:
        """Attend at every position: x (N, L, D), valid (N, L) -> (N, L, D)."""
        query, cluster, n_clusters = self._cluster(x, valid)
        centroid = cluster_means(query, cluster, valid, n_clusters)
        return self._attend(x, valid, query, centroid, group_queries(cluster, n_clusters))

    def at_last(self, x: Tensor, valid: Tensor) -> Tensor:
        """Attend at the final item only: x (N, L, D), valid (N, L) -> (N, D); only keys of its cluster."""
        query, cluster, _ = self._cluster(x, valid)
        final = final_positions(valid).unsqueeze(1)  # (N, 1)
        other = (cluster != cluster.gather(1, final)).long()
        centroid = cluster_means(query, other, valid, 2)[:, :1]  # (N, 1, D)
        zero = torch.zeros_like(final)
        return self._attend(x, valid, query, centroid, Groups(final.unsqueeze(2), zero, zero)).squeeze(1)

    def _cluster(self, x: Tensor, valid: Tensor) -> tuple[Tensor, Tensor, int]:
        """Scaled queries (N, L, D), their clusters (N, L), and how many clusters there are at most."""
        query = project_exactly(self.query, x)
        n_clusters = min(self.n_clusters, x.shape[1])
        signs = hash_signs(query.detach(), self.planes, self.offsets)  # (N, L, P)
        cluster = hamming_kmeans(signs, valid, n_clusters=n_clusters, n_iterations=self.n_kmeans_iterations)
        return query / math.sqrt(x.shape[-1]), cluster, n_clusters

    def _attend(self, x: Tensor, valid: Tensor, query: Tensor, centroid: Tensor, groups: Groups) -> Tensor:
        key = project_exactly(self.key, x)
        attended = self._attention(query, key, self.value(x), centroid, valid, groups, n_top=self.n_top_keys)
        return self.project(attended)
