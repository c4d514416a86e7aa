"""Attention to a position's bucket and to earlier buckets chosen for it, scaled by the probability of the choice."""

import math

import torch
from torch import Tensor


def choose_buckets(scores: Tensor, own: Tensor, *, n_top: int, temperature: float) -> tuple[Tensor, Tensor]:
    """Choose the best n_top of the columns of a bucket: n_top null columns, and the buckets before it.

    One after the other: p = softmax(scores / temperature) over the remaining columns, take the largest, remove it.

    Args:
        scores: (N, U, n_top + V); column n_top + v stands for bucket v.
        own: (U,) or (N, U) number of each bucket; only buckets before it may be chosen.
        n_top: T.
        temperature: of the softmax.

    Returns:
        column (N, U, T) int64, and its probability (N, U, T) when it was taken.
    """
    columns = torch.arange(scores.shape[-1], device=scores.device)
    left = (scores / temperature).masked_fill(columns >= own.unsqueeze(-1) + n_top, -torch.inf)
    chosen, probabilities = [], []
    for _ in range(n_top):
        probability, column = torch.softmax(left, dim=-1).max(dim=-1, keepdim=True)
        left = left.scatter(-1, column, -torch.inf)
        chosen.append(column)
        probabilities.append(probability)
    return torch.cat(chosen, dim=-1), torch.cat(probabilities, dim=-1)


def sorted_bucket_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    past_key: Tensor,
    past_value: Tensor,
    probability: Tensor,
    visible: Tensor,
    *,
    copies: int = 1,
) -> Tensor:
    """softmax(query [p past_key ; key]^T) [p past_value ; value], p the probability of each past bucket.

    Args:
        query: (N, U, Q, D), scaled.
        key: (N, U, b, D) of the query's bucket.
        value: (N, U, b, D) of the query's bucket.
        past_key: (N, U, T * b, D) of the chosen buckets.
        past_value: (N, U, T * b, D) of the chosen buckets.
        probability: (N, U, T).
        visible: visible positions of the query's bucket; broadcasts to (N, U, Q, b).
        copies: how many equal positions each position of a past bucket stands for.

    Returns:
        (N, U, Q, D).
    """
    n_past = past_key.shape[2]
    scale = probability.repeat_interleave(n_past // probability.shape[-1], dim=-1).unsqueeze(2)  # (N, U, 1, T b)
    past = query @ past_key.transpose(2, 3) * scale + math.log(copies)  # (N, U, Q, T b)
    own = (query @ key.transpose(2, 3)).masked_fill(~visible, -torch.inf)  # (N, U, Q, b)
    logits = torch.cat([past, own.to(past.dtype)], dim=-1)
    weights = torch.softmax(logits, dim=-1)
    sorted_part = (weights[..., :n_past] * scale).to(value.dtype) @ past_value
    return sorted_part + weights[..., n_past:].to(value.dtype) @ value
