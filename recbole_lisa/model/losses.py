"""Training losses over supervised positions, each a function of scores (M,) and (M, R), or blockwise over all items."""

import math

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid, softplus

from recbole_lisa.ops.cross_entropy import catalogue_cross_entropy
from recbole_lisa.ops.pair_scores import pair_scores
from recbole_lisa.ops.shared_negatives import shared_negatives_sum, sigmoid_term, softmax_term

SAMPLED_LOSSES = ("BCE", "BPR", "gBCE", "SSM")
LOSSES = (*SAMPLED_LOSSES, "CE")


def binary_cross_entropy(positive: Tensor, negative: Tensor) -> Tensor:
    """-log sigmoid(s+) - sum_r log(1 - sigmoid(s_r)), averaged over positions (the paper's loss).

    Args:
        positive: (M,) scores of the targets.
        negative: (M, R) scores of the negatives.

    Returns:
        Scalar.
    """
    return softplus(-positive).mean() + softplus(negative).sum(dim=1).mean()


def bpr(positive: Tensor, negative: Tensor) -> Tensor:
    """-log sigmoid(s+ - s_r), averaged over positions and negatives; arguments as binary_cross_entropy."""
    return -logsigmoid(positive.unsqueeze(1) - negative).mean()


def generalised_bce(positive: Tensor, negative: Tensor, *, n_items: int, t: float) -> Tensor:
    """gBCE (Petrov and Macdonald, 2023): sigmoid(s+)^beta corrects the overconfidence due to sampling.

    beta = alpha (t (1 - 1/alpha) + 1/alpha), alpha = R / (n_items - 1): t = 0 is plain BCE.

    Args:
        positive: (M,).
        negative: (M, R).
        n_items: number of items without padding.
        t: calibration in [0, 1].

    Returns:
        Scalar, averaged over positions and over the 1 + R scores of each.
    """
    beta = _gbce_exponent(negative.shape[1], n_items, t)
    total = beta * softplus(-positive) + softplus(negative).sum(dim=1)
    return total.mean() / (1 + negative.shape[1])


def _gbce_exponent(n_negatives: int, n_items: int, t: float) -> float:
    rate = min(n_negatives / max(n_items - 1, 1), 1.0)
    return rate * (t * (1 - 1 / rate) + 1 / rate)


def sampled_softmax(scores: Tensor, log_q: Tensor | None) -> Tensor:
    """Cross entropy of the target against its negatives, scores corrected by log q of the sampling distribution.

    Args:
        scores: (M, 1 + R) of the targets, in column 0, and of the negatives.
        log_q: (M, 1 + R) log sampling probabilities; None for uniform sampling, where they cancel.

    Returns:
        Scalar.
    """
    logits = scores if log_q is None else scores - log_q
    return (logits.logsumexp(dim=1) - logits[:, 0]).mean()


def sampled_loss(
    name: str,
    scores: Tensor,
    *,
    n_items: int,
    gbce_t: float,
    log_q: Tensor | None,
) -> Tensor:
    """One of SAMPLED_LOSSES by name.

    Args:
        name: BCE, BPR, gBCE or SSM.
        scores: (M, 1 + R) of the targets, in column 0, and of the negatives.
        n_items: number of items without padding, for gBCE.
        gbce_t: calibration of gBCE.
        log_q: (M, 1 + R) log sampling probabilities, for SSM; None for uniform sampling.

    Returns:
        Scalar.
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

    Args:
        name: SSM, BCE or gBCE, which takes R = K for every position.
        hidden: (M, D).
        table: (U, D) item vectors.
        target: (M,) rows of the table.
        negative: (K,) rows of the table.
        n_items: number of items without padding, for gBCE.
        gbce_t: calibration of gBCE.
        log_q: (U,) log sampling probabilities, for SSM; None for uniform sampling.

    Returns:
        Scalar.
    """
    positive = pair_scores(hidden, table, target.unsqueeze(1)).squeeze(1)  # (M,)
    positive = positive.to(torch.promote_types(positive.dtype, torch.float32))
    operands = hidden, table, positive if log_q is None else positive - log_q[target], target, negative, log_q
    if name == "SSM":
        return shared_negatives_sum(softmax_term, *operands) / len(hidden)
    total = shared_negatives_sum(sigmoid_term, *operands) / len(hidden)
    if name == "BCE":
        return softplus(-positive).mean() + total
    beta = _gbce_exponent(len(negative), n_items, gbce_t)
    return (beta * softplus(-positive).mean() + total) / (1 + len(negative))


def full_cross_entropy(hidden: Tensor, table: Tensor, target: Tensor) -> Tensor:
    """Cross entropy over all items, averaged over positions, in blocks of positions.

    Args:
        hidden: (M, D).
        table: (V, D) item vectors; row 0 is padding and is left out of the softmax.
        target: (M,) item ids, 1..V-1.

    Returns:
        Scalar; memory stays O(M D + V D), never (M, V).
    """
    return catalogue_cross_entropy(hidden, table[1:], target - 1) / hidden.shape[0]


def log_sampling_probability(counts: Tensor, alpha: float) -> Tensor:
    """log q of popularity sampling.

    Args:
        counts: (V,) interactions of each item; row 0 is padding.
        alpha: power of the popularity.

    Returns:
        (V,) log q; for items that are never drawn, the log of the smallest positive float.
    """
    weight = counts.double().pow(alpha) * (counts > 0)
    return (weight / weight.sum()).clamp_min(math.ulp(0.0)).log().float()
