"""Full attention as the mechanisms that share queries and keys would do it, and the count of positions that change."""

import math

import torch
from torch import Tensor
from torch.nn.functional import normalize

from recbole_lisa.attention import Attention, ReformerAttention, RoutingAttention


def full_shared_attention(attention: ReformerAttention | RoutingAttention, x: Tensor) -> Tensor:
    """Exact causal attention with unit keys; a position sees itself only when it is the first: x (N, L, D)."""
    query, value = attention.query_key(x), attention.value(x)
    length = x.shape[1]
    logits = query @ normalize(query, dim=-1).transpose(1, 2) / math.sqrt(x.shape[-1])
    logits = torch.where(torch.eye(length, dtype=torch.bool), -5e4, logits)
    logits = logits.masked_fill(torch.ones(length, length, dtype=torch.bool).triu(1), -torch.inf)
    return attention.output(torch.softmax(logits, dim=-1) @ value)


def positions_that_change(attention: Attention, *, length: int, trials: int, hidden_size: int) -> int:
    """How many earlier outputs move when item t + 1 alone is replaced, over random sequences and t."""
    valid = torch.ones(1, length, dtype=torch.bool)
    changed = 0
    for _ in range(trials):
        x = torch.randn(1, length, hidden_size)
        t = int(torch.randint(length - 1, ()))
        other = x.clone()
        other[:, t + 1] = torch.randn(hidden_size)
        with torch.no_grad():
            difference = (attention(x, valid) - attention(other, valid))[0, : t + 1].abs().amax(dim=-1)
        changed += int((difference > 1e-5).sum())
    return changed
