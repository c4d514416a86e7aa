r"""Quantising vectors with B codebooks of W codewords (LISA, Eq. 2).

    p_b = softmax(sim(r_{b-1}, C_b) / temperature)         r_0 = x
    E_b = p_b (soft)  or  one_hot(argmax p_b) with the gradient of p_b (straight-through)
    y_b = sum_w E_b[w] C_b[w],   r_b = r_{b-1} - y_b,      y = sum_b y_b

Parallel encoding, as the paper's equation is written, keeps r_b = x for every codebook.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from recbole_lisa.ops.checks import MIN_TEMPERATURE, check_number, check_operands

SIMILARITIES = ("bilinear", "dot", "euclidean")


class Quantized(NamedTuple):
    """U vectors in terms of codewords.

    codes (U, B) int64 of the most similar codewords; assignment (U, B, W) soft or straight-through; reconstruction
    (U, D).
    """

    codes: Tensor
    assignment: Tensor
    reconstruction: Tensor


def quantize(
    x: Tensor,
    codebooks: Tensor,
    *,
    similarity: str = "dot",
    bilinear: Tensor | None = None,
    temperature: float = 1.0,
    residual: bool = True,
    hard: bool = True,
) -> Quantized:
    """Encode vectors.

    Args:
        x: (U, D).
        codebooks: (B, W, D).
        similarity: bilinear (x^T M c), dot (x^T c) or euclidean (-|x - c|^2).
        bilinear: (D, D) matrix M, for similarity="bilinear" only.
        temperature: of the softmax, at least MIN_TEMPERATURE.
        residual: each codebook encodes what is left after the earlier ones; False: every codebook sees x.
        hard: one codeword a codebook with a straight-through gradient; False: the softmax itself.

    Returns:
        Quantized. Differentiable in x, codebooks and bilinear.

    Raises:
        ValueError: on operands that do not fit, an unknown similarity, a bilinear matrix that is missing or unused, or
            a temperature below MIN_TEMPERATURE.
    """
    if similarity not in SIMILARITIES:
        raise ValueError(f"similarity must be one of {', '.join(SIMILARITIES)}, got {similarity!r}")
    if (bilinear is None) == (similarity == "bilinear"):
        raise ValueError(f"similarity={similarity!r} {'needs' if bilinear is None else 'takes no'} bilinear matrix")
    check_operands("codebooks: B+ W+ D+; x: U D; bilinear?: D D", codebooks, x, bilinear)
    check_number("temperature", temperature, MIN_TEMPERATURE)
    left, total = x, torch.zeros_like(x)
    codes, assignments = [], []
    for book in codebooks:
        scores = _similarity(left, book, similarity, bilinear)  # (U, W)
        soft = torch.softmax(scores / temperature, dim=-1)
        code = scores.argmax(dim=-1)  # (U,)
        assignment = soft
        if hard:  # one_hot(code) forward, the gradient of soft backward
            assignment = torch.zeros_like(soft).scatter_(-1, code.unsqueeze(-1), 1.0) + (soft - soft.detach())
        word = assignment @ book  # (U, D)
        total = total + word
        if residual:
            left = left - word
        codes.append(code)
        assignments.append(assignment)
    return Quantized(torch.stack(codes, dim=1), torch.stack(assignments, dim=1), total)


def _similarity(x: Tensor, book: Tensor, similarity: str, bilinear: Tensor | None) -> Tensor:
    if similarity == "euclidean":
        return 2 * x @ book.t() - (book * book).sum(dim=-1) - (x * x).sum(dim=-1, keepdim=True)
    return x @ (book if bilinear is None else book @ bilinear.t()).t()
