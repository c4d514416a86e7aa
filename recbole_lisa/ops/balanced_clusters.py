"""Attention inside clusters of equal size (the published routing); they may overlap and leave positions out."""

import torch
from torch import Tensor

from recbole_lisa.ops.checks import can_read, check_operands
from recbole_lisa.ops.numba_threads import check_rows
from recbole_lisa.ops.sorted_window import chunk_logits, split, take_rows

MEAN_EPSILON = 1e-5
"""Added to the number of clusters that a position is in, as in the public implementation."""


def balanced_cluster_attention(query: Tensor, key: Tensor, value: Tensor, members: Tensor) -> Tensor:
    """Each cluster attends among its members, to earlier ones only: query, key, value (N, L, D) -> (N, L, D).

    members (N, C, w) int64 are the positions of each cluster, no position twice; L stands for none. A position in
    several clusters gets the mean of its outputs, a position in none gets 0. With the positions nearest to a centroid
    as members it sees the future: which they are depends on the whole sequence.
    """
    forms = "query: N L+ D; key: N L D; value: floating-point N L D; members: int64 N C w"
    check_operands(forms, query, key, value, members)
    n, length = query.shape[:2]
    check_rows(members, length + 1, "members")
    present = members < length
    if can_read(members):
        marks = torch.zeros(*members.shape[:2], length + 1, dtype=torch.bool).scatter_(2, members, True)
        if int(marks[..., :length].sum()) != int(present.sum()):
            raise ValueError("members has a position twice in a cluster: it must be there once")
    position = members.clamp_max(length - 1)

    def chunks(x: Tensor) -> Tensor:
        return split(take_rows(x, position.flatten(1)), position.shape[2])  # (N, C, w, D)

    query_at, key_at = members.unsqueeze(-1), members.unsqueeze(-2)
    logits = chunk_logits(chunks(query), chunks(key), visible=key_at < query_at, own=key_at == query_at)
    out = (torch.softmax(logits, dim=-1).to(value.dtype) @ chunks(value)).flatten(1, 2)  # (N, C w, D)
    present, position = present.flatten(1), position.flatten(1)
    count = out.new_zeros(n, length).scatter_add_(1, position, present.to(out.dtype))
    rows = (position + torch.arange(n, device=position.device).unsqueeze(1) * length).flatten()
    total = out.new_zeros(n * length, out.shape[-1]).index_add(0, rows, (out * present.unsqueeze(-1)).flatten(0, 1))
    return total.view(n, length, value.shape[2]) / (count + MEAN_EPSILON).unsqueeze(-1)
