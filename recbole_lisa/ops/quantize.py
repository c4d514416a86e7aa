r"""Quantising vectors with B codebooks of W codewords (LISA, Eq. 2).

    p_b = softmax(sim(r_{b-1}, C_b) / temperature)         r_0 = x
    E_b = p_b (soft)  or  one_hot(argmax p_b) with the gradient of p_b (straight-through)
    y_b = sum_w E_b[w] C_b[w],   r_b = r_{b-1} - y_b,      y = sum_b y_b

Parallel encoding, as the paper's equation is written, keeps r_b = x for every codebook.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

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
        x: (U, D). Of a row with NaN the assignment and reconstruction are NaN, and its codes mean nothing.
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
    _check(x, codebooks, similarity, bilinear, temperature)
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


def quantize_hard(
    x: Tensor,
    codebooks: Tensor,
    *,
    similarity: str = "dot",
    bilinear: Tensor | None = None,
    temperature: float = 1.0,
    residual: bool = True,
) -> Quantized:
    """As quantize with hard=True, equal to rounding, in about two thirds of its time.

    A codeword is looked up, and its gradient is a sum over its vectors. quantize multiplies one-hot rows instead.
    """
    _check(x, codebooks, similarity, bilinear, temperature)
    keys, bias = codebooks if bilinear is None else codebooks @ bilinear.t(), codebooks.new_zeros(codebooks.shape[:2])
    if similarity == "euclidean":  # without |x|^2, which all codewords have
        keys, bias = 2 * keys, -keys.square().sum(dim=2)
    operands = x, codebooks, keys, bias, temperature, residual
    return Quantized(*_HardQuantize.apply(*operands))  # type: ignore[no-untyped-call]  # torch's Function is untyped


class _HardQuantize(torch.autograd.Function):
    """x (U, D), words and keys (B, W, D), bias (B, W) -> Quantized; a score is x . key + bias."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, words: Tensor, keys: Tensor, bias: Tensor, temperature: float, residual: bool
    ) -> tuple[Tensor, ...]:
        left, total = x.clone() if residual else x, torch.zeros_like(x)
        codes, soft, mark = [], [], x.new_zeros(len(x), 1)  # 0, or NaN where a score is
        for book, key, b in zip(words, keys, bias, strict=True):
            scores = torch.addmm(b, left, key.t())  # (U, W)
            codes.append(scores.argmax(dim=1))
            soft.append(scores.div_(temperature).softmax(dim=1))
            mark += soft[-1][:, :1] * 0
            word = book.index_select(0, codes[-1])  # (U, D)
            total += word
            left = left.sub_(word) if residual else left
        ctx.save_for_backward(left, words, keys, *codes, *soft)
        ctx.temperature, ctx.residual = temperature, residual
        ctx.set_materialize_grads(False)
        stacked = torch.stack(codes, dim=1)
        ctx.mark_non_differentiable(stacked)
        hot = x.new_zeros(*stacked.shape, words.shape[1]).scatter_(2, stacked.unsqueeze(2), 1.0)
        return stacked, hot.add_(mark.unsqueeze(2)), total.add_(mark)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, _: Tensor, d_assignment: Tensor | None, grad: Tensor | None) -> tuple[Tensor | None, ...]:
        left, words, keys, *rest = ctx.saved_tensors
        d_words, d_keys, d_x = torch.zeros_like(words), torch.empty_like(keys), torch.zeros_like(left)
        grad, left = torch.zeros_like(left) if grad is None else grad, left.clone()
        d_bias = keys.new_empty(keys.shape[:2])
        for b in reversed(range(len(words))):
            code, soft, d_word = rest[b], rest[len(words) + b], grad
            if ctx.residual:  # the codebook read what this word is taken from
                left, d_word = left.add_(words[b].index_select(0, code)), grad - d_x
            d_words[b].index_add_(0, code, d_word)
            d_soft = d_word @ words[b].t()  # (U, W)
            d_scores = (d_soft if d_assignment is None else d_soft.add_(d_assignment[:, b])).mul_(soft)
            d_scores = d_scores.sub_(soft * d_scores.sum(dim=1, keepdim=True)).div_(ctx.temperature)
            d_keys[b], d_bias[b] = d_scores.t() @ left, d_scores.sum(dim=0)
            d_x.addmm_(d_scores, keys[b])
        return d_x, d_words, d_keys, d_bias, None, None


def _check(x: Tensor, codebooks: Tensor, similarity: str, bilinear: Tensor | None, temperature: float) -> None:
    if similarity not in SIMILARITIES:
        raise ValueError(f"similarity must be one of {', '.join(SIMILARITIES)}, got {similarity!r}")
    if (bilinear is None) == (similarity == "bilinear"):
        raise ValueError(f"similarity={similarity!r} {'needs' if bilinear is None else 'takes no'} bilinear matrix")
    check_operands("codebooks: B+ W+ D+; x: U D; bilinear?: D D", codebooks, x, bilinear)
    check_number("temperature", temperature, MIN_TEMPERATURE)


def _similarity(x: Tensor, book: Tensor, similarity: str, bilinear: Tensor | None) -> Tensor:
    if similarity == "euclidean":
        return 2 * x @ book.t() - (book * book).sum(dim=-1) - (x * x).sum(dim=-1, keepdim=True)
    return x @ (book if bilinear is None else book @ bilinear.t()).t()
