"""Exact attention with the layers of a module: what the mechanisms are compared with."""

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

D = 16


def causal(length: int) -> Tensor:
    """The pairs (L, L) that causal attention allows."""
    return torch.ones(length, length, dtype=torch.bool).tril()


def masked_attention(attention: Any, x: Tensor, allowed: Tensor | None = None) -> Tensor:
    """Softmax attention over the allowed pairs (L, L), all by default: x (N, L, D)."""
    query, key, value = attention.query(x), attention.key(x), attention.value(x)
    logits = query @ key.transpose(1, 2) / math.sqrt(D)
    if allowed is not None:
        logits = logits.masked_fill(~allowed, -torch.inf)
    return attention.output(torch.softmax(logits, dim=-1) @ value)


def shared_attention(attention: Any, x: Tensor) -> Tensor:
    """Causal attention with unit keys; a position sees itself only when it is the first: x (N, L, D)."""
    query, value, length = attention.query_key(x), attention.value(x), x.shape[1]
    logits = query @ normalize(query, dim=-1).transpose(1, 2) / math.sqrt(D)
    logits = torch.where(torch.eye(length, dtype=torch.bool), -5e4, logits).masked_fill(~causal(length), -torch.inf)
    return attention.output(torch.softmax(logits, dim=-1) @ value)


def banded_attention(query: Tensor, key: Tensor, value: Tensor, bias: Tensor) -> Tensor:
    """Causal softmax attention over the last w positions, with all (L, L) scores; see ops.banded_attention."""
    length, window = query.shape[1], bias.shape[1]
    age = torch.arange(length).unsqueeze(1) - torch.arange(length)  # (L, L), i - j
    logits = torch.einsum("nihe,njhe->nhij", query, key) / math.sqrt(query.shape[-1])
    logits = (logits + bias[:, age.clamp(0, window - 1)]).masked_fill((age < 0) | (age >= window), -torch.inf)
    return torch.einsum("nhij,njhe->nihe", logits.softmax(dim=-1), value)
