"""Attention to a position's bucket and to earlier buckets chosen for it, scaled by the probability of the choice."""

import math

import torch
from torch import Tensor

from recbole_lisa.ops.checks import MIN_TEMPERATURE, check_mask, check_number, check_operands, check_range, check_sizes


def choose_buckets(scores: Tensor, own: Tensor, *, n_top: int, temperature: float) -> tuple[Tensor, Tensor]:
    """Choose the best n_top of the columns of a bucket: n_top null columns, and the buckets before it.

    One after the other: p = softmax(scores / temperature) over the remaining columns, take the largest, remove it.
    Column n_top + v of scores (N, U, n_top + V) stands for bucket v; of the bucket numbers own, (U,) or (N, U), only
    earlier ones may be chosen. Returns columns (N, U, n_top) int64, and the probability of each when it was taken.
    """
    check_operands("scores: floating-point N U C; own: int64 ... U", scores, own)
    check_sizes(n_top=n_top)
    check_number("temperature", temperature, MIN_TEMPERATURE)
    check_range("own", own, 0)
    if scores.shape[-1] < n_top:
        raise ValueError(f"scores must have at least n_top = {n_top} columns, got {scores.shape[-1]}")
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
    """softmax(query [p past_key ; key]^T) [p past_value ; value], p the probability (N, U, T) of each past bucket.

    The scaled query and the result are (N, U, Q, D). key and value (N, U, b, D) are of the query's bucket; `visible`
    says which positions of it count and broadcasts to (N, U, Q, b). past_key and past_value (N, U, T * b, D) are of the
    chosen buckets; each of their positions stands for `copies` equal ones.
    """
    forms = "query: N U Q D; key: N U b D; past_key: N U P D; past_value: N U P D; value: N U b D"
    operands = query, key, past_key, past_value, value, probability
    check_operands(f"{forms}; probability: floating-point N U T+", *operands)
    check_mask("visible", visible, (*query.shape[:3], key.shape[2]))
    check_sizes(copies=copies)
    n_past = past_key.shape[2]
    if n_past % probability.shape[-1]:
        raise ValueError(f"past_key must be (N, U, T b, D) with T = {probability.shape[-1]}, got T b = {n_past}")
    scale = probability.repeat_interleave(n_past // probability.shape[-1], dim=-1).unsqueeze(2)  # (N, U, 1, T b)
    past = query @ past_key.transpose(2, 3) * scale + math.log(copies)  # (N, U, Q, T b)
    own = (query @ key.transpose(2, 3)).masked_fill(~visible, -torch.inf)  # (N, U, Q, b)
    logits = torch.cat([past, own.to(past.dtype)], dim=-1)
    weights = torch.softmax(logits, dim=-1)
    sorted_part = (weights[..., :n_past] * scale).to(value.dtype) @ past_value
    return sorted_part + weights[..., n_past:].to(value.dtype) @ value
