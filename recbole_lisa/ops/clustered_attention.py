"""Attention of clustered queries: the mean query of a cluster selects the keys that its members attend to."""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from recbole_lisa.ops.checks import MOST_CODEWORDS, check_operands, check_right_padding, check_sizes
from recbole_lisa.ops.numba_threads import check_rows
from recbole_lisa.ops.sorted_window import take_rows

GROUP = 16
"""Queries for which keys are gathered once: small, as most clusters are, yet enough for a matrix product."""

DENSE_LENGTH = 512
"""Up to this length all keys are scored and the others masked, which is cheaper there than gathering K keys a group."""
DENSE_QUERIES = 64
"""Queries whose scores of all keys exist at once; the backward pass computes them again."""


class Groups(NamedTuple):
    """Queries of the same cluster side by side.

    position (N, G, m) of each query, L for an empty place; cluster (N, G); place (N, M), where in G * m each result is.
    """

    position: Tensor
    cluster: Tensor
    place: Tensor


def cluster_means(x: Tensor, cluster: Tensor, valid: Tensor, n_clusters: int) -> Tensor:
    """Mean of each cluster's valid vectors, 0 for an empty one: x (N, L, D), cluster (N, L) int64 -> (N, C, D)."""
    check_operands("x: N L D; cluster: int64 N L; valid: bool N L", x, cluster, valid)
    check_sizes(1, MOST_CODEWORDS, n_clusters=n_clusters)
    check_rows(cluster, n_clusters, "cluster")
    n = x.shape[0]
    rows = (cluster + torch.arange(n, device=x.device).unsqueeze(1) * n_clusters).flatten()
    present = valid.unsqueeze(-1).to(x.dtype)
    sums = x.new_zeros(n * n_clusters, x.shape[-1]).index_add(0, rows, (x * present).flatten(0, 1))
    count = x.new_zeros(n * n_clusters, 1).index_add(0, rows, present.flatten(0, 1))
    return (sums / count.clamp_min(1)).view(n, n_clusters, x.shape[2])


def group_queries(cluster: Tensor, n_clusters: int) -> Groups:
    """Cut each cluster of cluster (N, L) int64 in 0..C-1 into groups of at most GROUP positions; place is (N, L).

    C + L / GROUP groups hold any clustering.
    """
    check_operands("cluster: int64 N L+", cluster)
    check_sizes(1, MOST_CODEWORDS, n_clusters=n_clusters)
    check_rows(cluster, n_clusters, "cluster")
    n, length = cluster.shape
    most = min(n_clusters, length)
    n_groups = most + (length - most) // GROUP
    size = cluster.new_zeros(n, n_clusters).scatter_add_(1, cluster, torch.ones_like(cluster))
    end = (-(-size // GROUP)).cumsum(dim=1)  # (N, C) groups up to and with each cluster
    shift = (end - -(-size // GROUP)) * GROUP - (size.cumsum(dim=1) - size)  # from rank to place
    order = cluster.sort(dim=1, stable=True).indices
    rank = torch.arange(length, device=cluster.device)
    slot = rank + shift.gather(1, cluster.gather(1, order))  # (N, L) place of the position in order
    position = cluster.new_full((n, n_groups * GROUP), length).scatter_(1, slot, order)
    numbers = torch.arange(n_groups, device=cluster.device).repeat(n, 1)
    owner = torch.searchsorted(end, numbers, right=True).clamp_max(n_clusters - 1)
    place = torch.empty_like(cluster).scatter_(1, order, slot)
    return Groups(position.view(n, n_groups, GROUP), owner, place)


def causal_clustered_attention(
    query: Tensor, key: Tensor, value: Tensor, centroid: Tensor, valid: Tensor, groups: Groups, *, n_top: int
) -> Tensor:
    """softmax over those of the cluster's n_top keys that are not later than the query; 0 when all are.

    Sees the future: which keys a cluster takes depends on the whole sequence. Takes scaled queries, keys and values
    (N, L, D), centroid (N, C, D) mean queries, valid (N, L) bool with padding on the right, and the groups of the
    queries to compute. Returns (N, M, D) at the places of the groups.
    """
    _check(n_top, groups, query, key, value, centroid, valid)
    with torch.no_grad():
        top = _scores(centroid, key, valid).topk(min(n_top, key.shape[1]), dim=-1, sorted=False).indices
    keys = take_rows(top, groups.cluster).unsqueeze(2)  # (N, G, 1, K)
    attended = _attend(query, key, value, keys, keys <= groups.position.unsqueeze(3), groups)
    chosen_by_nan = centroid.isnan().any(dim=-1, keepdim=True)  # (N, C, 1)
    return attended.masked_fill(take_rows(chosen_by_nan, _cluster_of_places(groups)), torch.nan)


def bidirectional_clustered_attention(
    query: Tensor, key: Tensor, value: Tensor, centroid: Tensor, valid: Tensor, groups: Groups, *, n_top: int
) -> Tensor:
    """The attention of the cluster's mean query, its mass on the n_top best keys divided anew by each query.

        A = softmax(centroid key^T),  out_i = sum_{j not top} A_cj v_j + (sum_{j top} A_cj) softmax_top(q_i k^T) v_top

    Arguments and result as causal_clustered_attention.
    """
    _check(n_top, groups, query, key, value, centroid, valid)
    scores = _scores(centroid, key, valid)  # (N, C, L)
    top = scores.detach().topk(min(n_top, key.shape[1]), dim=-1, sorted=False).indices
    rest = torch.softmax(scores, dim=-1).scatter(-1, top, 0.0)  # (N, C, L)
    keys = take_rows(top, groups.cluster).unsqueeze(2)  # (N, G, 1, K)
    present = valid.gather(1, keys.flatten(1)).view_as(keys)
    sharp = _attend(query, key, value, keys, present, groups)
    cluster = _cluster_of_places(groups)
    coarse = take_rows(rest.to(value.dtype) @ value, cluster)
    mass = 1 - take_rows(rest.sum(dim=-1, keepdim=True), cluster)
    return coarse + mass.to(value.dtype) * sharp


def _cluster_of_places(groups: Groups) -> Tensor:
    return groups.cluster.gather(1, groups.place // groups.position.shape[2])  # (N, M)


def _check(n_top: int, groups: Groups, *operands: Tensor) -> None:
    check_sizes(n_top=n_top)
    forms = "query: N L+ D; key: N L D; value: floating-point N L D; centroid: floating-point N C D; valid: bool N L; "
    if not isinstance(groups, Groups):
        raise ValueError(f"groups must be Groups, such as of group_queries, got {type(groups).__name__}")
    check_operands(f"{forms}position: int64 N G m; cluster: int64 N G; place: int64 N M", *operands, *groups)
    check_right_padding(operands[-1])
    check_rows(groups.position, operands[0].shape[1] + 1, "position of groups")
    check_rows(groups.cluster, operands[3].shape[1], "cluster of groups")
    check_rows(groups.place, groups.position[0].numel(), "place of groups")


def _scores(centroid: Tensor, key: Tensor, valid: Tensor) -> Tensor:
    """(N, C, L) products with padding far below; a row of padding only stays finite."""
    with torch.autocast(key.device.type, enabled=False):
        scores = centroid @ key.to(centroid.dtype).transpose(1, 2)
    return scores.masked_fill(~valid.unsqueeze(1), torch.finfo(scores.dtype).min)


def _attend(query: Tensor, key: Tensor, value: Tensor, keys: Tensor, visible: Tensor, groups: Groups) -> Tensor:
    """Attention of each group to its keys (N, G, 1, K), where visible (N, G, m or 1, K): (N, M, D)."""
    if query.shape[1] <= DENSE_LENGTH:
        return _attend_densely(query, key, value, keys, visible, groups)
    n, length, width = query.shape
    n_groups, size = groups.position.shape[1:]
    q = take_rows(query, groups.position.flatten(1).clamp_max(length - 1)).view(n, n_groups, size, width)
    k, v = (take_rows(x, keys.flatten(1)).view(n, n_groups, -1, width) for x in (key, value))  # (N, G, K, D)
    logits = q @ k.transpose(2, 3)  # (N, G, m, K)
    logits = logits.masked_fill(~visible, torch.finfo(logits.dtype).min)
    weights = torch.softmax(logits, dim=-1) * visible
    return take_rows((weights.to(v.dtype) @ v).flatten(1, 2), groups.place)


def _attend_densely(query: Tensor, key: Tensor, value: Tensor, keys: Tensor, visible: Tensor, groups: Groups) -> Tensor:
    """_attend by masking the scores of all keys, a few queries at a time."""
    size = groups.position.shape[2]
    shape = (*groups.position.shape, keys.shape[3])  # (N, G, m, K)
    out = []
    for place in torch.split(groups.place, DENSE_QUERIES, dim=1):  # (N, m')
        position = groups.position.flatten(1).gather(1, place)
        chosen = take_rows(keys.squeeze(2), place // size)  # (N, m', K)
        seen = take_rows(visible.expand(shape).flatten(1, 2), place)  # (N, m', K)
        q = take_rows(query, position)
        out.append(checkpoint(_masked_attention, q, key, value, chosen, seen, use_reentrant=False))
    return torch.cat(out, dim=1)


def _masked_attention(query: Tensor, key: Tensor, value: Tensor, chosen: Tensor, seen: Tensor) -> Tensor:
    logits = query @ key.transpose(1, 2)  # (N, m, L)
    allowed = seen.new_zeros(logits.shape).scatter_(2, chosen, seen)
    logits = logits.masked_fill(~allowed, torch.finfo(logits.dtype).min)
    weights = torch.softmax(logits, dim=-1) * allowed
    return weights.to(value.dtype) @ value
