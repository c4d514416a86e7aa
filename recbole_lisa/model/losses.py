"""Training losses over supervised positions, each a function of scores (M,) and (M, R), or blockwise over all items."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid, softplus
from torch.utils.checkpoint import checkpoint

from recbole_lisa.ops.cross_entropy import catalogue_cross_entropy, coded_cross_entropy
from recbole_lisa.ops.pair_scores import pair_scores

SAMPLED_LOSSES = ("BCE", "BPR", "gBCE", "SSM")
LOSSES = (*SAMPLED_LOSSES, "CE")

SHARED_SCORES = 2**24
"""Scores of shared negatives that exist at once, 64 MB in float32; the backward pass computes more of them again."""


def binary_cross_entropy(positive: Tensor, negative: Tensor) -> Tensor:
    """-log sigmoid(s+) - sum_r log(1 - sigmoid(s_r)), averaged over positions (the paper's loss).

    positive (M,) are the scores of the targets, negative (M, R) those of the negatives.
    """
    return softplus(-positive).mean() + softplus(negative).sum(dim=1).mean()


def bpr(positive: Tensor, negative: Tensor) -> Tensor:
    """-log sigmoid(s+ - s_r), averaged over positions and negatives; arguments as binary_cross_entropy."""
    return -logsigmoid(positive.unsqueeze(1) - negative).mean()


def generalised_bce(positive: Tensor, negative: Tensor, *, n_items: int, t: float) -> Tensor:
    """gBCE (Petrov and Macdonald, 2023): sigmoid(s+)^beta corrects the overconfidence due to sampling.

    beta = alpha (t (1 - 1/alpha) + 1/alpha), alpha = R / (n_items - 1): t = 0 is plain BCE. positive (M,), negative
    (M, R); n_items is without padding, t in [0, 1]. Averaged over positions and over the 1 + R scores of each.
    """
    beta = _gbce_exponent(negative.shape[1], n_items, t)
    total = beta * softplus(-positive) + softplus(negative).sum(dim=1)
    return total.mean() / (1 + negative.shape[1])


def _gbce_exponent(n_negatives: int, n_items: int, t: float) -> float:
    rate = min(n_negatives / max(n_items - 1, 1), 1.0)
    return rate * (t * (1 - 1 / rate) + 1 / rate)


def sampled_softmax(scores: Tensor, log_q: Tensor | None) -> Tensor:
    """Cross entropy of the target against its negatives, scores corrected by log q of the sampling distribution.

    scores (M, 1 + R) has the targets in column 0; log_q (M, 1 + R) is None for uniform sampling, where it cancels.
    """
    logits = scores if log_q is None else scores - log_q
    return (logits.logsumexp(dim=1) - logits[:, 0]).mean()


def sampled_loss(name: str, scores: Tensor, *, n_items: int, gbce_t: float, log_q: Tensor | None) -> Tensor:
    """One of SAMPLED_LOSSES by name; scores (M, 1 + R) has the targets in column 0.

    n_items, without padding, and gbce_t, the calibration, are for gBCE. log_q (M, 1 + R), the log sampling
    probabilities, is for SSM; None for uniform sampling.
    """
    positive, negative = scores[:, 0], scores[:, 1:]
    if name == "BCE":
        return binary_cross_entropy(positive, negative)
    if name == "BPR":
        return bpr(positive, negative)
    if name == "gBCE":
        return generalised_bce(positive, negative, n_items=n_items, t=gbce_t)
    return sampled_softmax(scores, log_q)


def shared_negatives_loss(
    name: str,
    hidden: Tensor,
    table: Tensor,
    target: Tensor,
    negative: Tensor,
    *,
    n_items: int,
    gbce_t: float,
    log_q: Tensor | None,
) -> Tensor:
    """As sampled_loss, with the same K negatives for all positions, each without its own target.

    The name is SSM, BCE or gBCE, which takes R = K for every position. hidden (M, D), item vectors table (U, D); target
    (M,) and negative (K,) are rows of the table, and so is log_q (U,).
    """
    positive = pair_scores(hidden, table, target.unsqueeze(1)).squeeze(1)  # (M,)
    positive = positive.to(torch.promote_types(positive.dtype, torch.float32))
    rows, counts = torch.unique(negative, return_counts=True)
    column_of = torch.full((len(table),), -1, device=table.device)
    column_of[rows] = torch.arange(len(rows), device=table.device)
    own, weights, bias = column_of[target], counts.to(positive.dtype), None
    if name == "SSM":
        bias = (weights.log() if log_q is None else weights.log() - log_q[rows]).to(hidden.dtype)
        positive = positive if log_q is None else positive - log_q[target]
    items = table.index_select(0, rows).to(hidden.dtype), weights, bias
    size = max(SHARED_SCORES // len(rows), 1)
    if len(hidden) <= size:
        sums = _sums_over_negatives(hidden, own, *items)
    else:
        parts = zip(torch.split(hidden, size), torch.split(own, size), strict=True)
        sums = torch.cat([checkpoint(_sums_over_negatives, *part, *items, use_reentrant=False) for part in parts])
    if name == "SSM":
        return softplus(sums - positive).mean()
    if name == "BCE":
        return (softplus(-positive) + sums).mean()
    beta = _gbce_exponent(len(negative), n_items, gbce_t)
    return (beta * softplus(-positive) + sums).mean() / (1 + len(negative))


def _sums_over_negatives(hidden: Tensor, own: Tensor, table: Tensor, weights: Tensor, bias: Tensor | None) -> Tensor:
    """(m,) log sum_k exp(s_k + bias_k), or without bias sum_k weights_k softplus(s_k); column own (m,) is left out."""
    scores = hidden @ table.t() if bias is None else torch.addmm(bias, hidden, table.t())  # (m, K)
    scores = scores.to(weights.dtype)
    hit = own.ge(0).nonzero().squeeze(1)
    scores[hit, own[hit]] = -torch.inf
    return softplus(scores) @ weights if bias is None else scores.logsumexp(dim=1)


def full_cross_entropy(
    hidden: Tensor,
    items: Tensor | Sequence[tuple[Tensor, Tensor]],
    target: Tensor,
    *,
    seen: Tensor | None = None,
    group: Tensor | None = None,
) -> Tensor:
    """Cross entropy over all items, averaged over positions, in blocks: O(M D) memory beside the operands.

    hidden (M, D); items are their vectors (V, D), or codes (V, B) with codewords (B, W, D), see coded_cross_entropy.
    Item 0 is padding and is left out of the softmax. target (M,) ids in 1..V-1. seen (N, L) are ids that the softmax of
    a group leaves out, all but the target itself, 0 for none; the row of each position is group (M,).
    """
    left_out: dict[str, Tensor | None] = {"excluded": None if seen is None else seen - 1, "group": group}
    if isinstance(items, Tensor):
        return catalogue_cross_entropy(hidden, items[1:], target - 1, **left_out) / len(hidden)
    coded = [(codes[1:], words) for codes, words in items]
    return coded_cross_entropy(hidden, coded, target - 1, **left_out) / len(hidden)


def log_sampling_probability(counts: Tensor, alpha: float) -> Tensor:
    """log q (V,) of sampling by counts (V,) to the power alpha; row 0 is padding.

    For items that are never drawn it is the log of the smallest positive float.
    """
    weight = counts.double().pow(alpha) * (counts > 0)
    return (weight / weight.sum()).clamp_min(math.ulp(0.0)).log().float()
