"""Training losses over supervised positions, each a function of scores (M,) and (M, R), or blockwise over all items."""

import math

from torch import Tensor
from torch.nn.functional import logsigmoid, softplus

from recbole_lisa.ops.cross_entropy import catalogue_cross_entropy

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
    rate = min(negative.shape[1] / max(n_items - 1, 1), 1.0)
    beta = rate * (t * (1 - 1 / rate) + 1 / rate)
    total = beta * softplus(-positive) + softplus(negative).sum(dim=1)
    return total.mean() / (1 + negative.shape[1])


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
