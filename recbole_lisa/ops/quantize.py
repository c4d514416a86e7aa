r"""Quantising vectors with B codebooks of W codewords (LISA, Eq. 2).

    p_b = softmax(sim(r_{b-1}, C_b) / temperature)         r_0 = x
    E_b = p_b (soft)  or  one_hot(argmax p_b) with the gradient of p_b (straight-through)
    y_b = sum_w E_b[w] C_b[w],   r_b = r_{b-1} - y_b,      y = sum_b y_b

Parallel encoding, as the paper's equation is written, keeps r_b = x for every codebook.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from recbole_lisa.ops.checks import (
    MIN_TEMPERATURE,
    check_choice,
    check_flags,
    check_number,
    check_operands,
    check_sizes,
    differentiable_once,
)
from recbole_lisa.ops.numba_threads import cut_rows
from recbole_lisa.ops.row_blocks import largest

SIMILARITIES = ("bilinear", "dot", "euclidean")

BLOCK_SCORES = {"cpu": 2**17, "cuda": 2**26}
"""Scores of vectors with one codebook that quantize holds: 512 KB in float32, in the cache; 256 MB on a GPU."""


class Quantized(NamedTuple):
    """U vectors in terms of codewords.

    codes (U, B) int64 of the most similar codewords; assignment (U, B, W) soft or straight-through, of hard codes
    (n_keys, B, W); reconstruction (U, D).
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
    n_keys: int | None = None,
) -> Quantized:
    """Encode vectors; hard codes a block of vectors at a time. Differentiable in all tensors, hard codes once.

    A hard codeword is looked up, and its gradient is a sum over its vectors. The backward pass computes the softmax of
    a block again, so hard codes take O(U D) memory, and O(U B W) with the assignment.

    Args:
        x: (U, D). Of a row with NaN, or with a score / temperature beyond its dtype, the reconstruction is NaN, and in
            every codebook the assignment has NaN (hard: one, at the code), so attention to it is NaN; its codes mean
            nothing.
        codebooks: (B, W, D).
        similarity: bilinear (x^T M c), dot (x^T c) or euclidean (-|x - c|^2).
        bilinear: (D, D) matrix M, for similarity="bilinear" only.
        temperature: of the softmax, at least MIN_TEMPERATURE.
        residual: each codebook encodes what is left after the earlier ones; False: every codebook sees x.
        hard: one codeword a codebook with a straight-through gradient; False: the softmax itself.
        n_keys: hard codes have the assignment of the first n_keys vectors only, (n_keys, B, W); None is all U.

    Raises:
        ValueError: on operands that do not fit, an unknown similarity, a bilinear matrix that is missing or unused, or
            a temperature below MIN_TEMPERATURE, or a flag that is neither True nor False.
    """
    check_choice("similarity", similarity, SIMILARITIES)
    if (bilinear is None) == (similarity == "bilinear"):
        raise ValueError(f"similarity={similarity!r} {'needs' if bilinear is None else 'takes no'} bilinear matrix")
    check_operands("codebooks: B+ W+ D+; x: U D; bilinear?: D D", codebooks, x, bilinear)
    check_number("temperature", temperature, MIN_TEMPERATURE)
    check_flags(residual=residual, hard=hard)
    n_keys = len(x) if n_keys is None else n_keys
    check_sizes(0, len(x), n_keys=n_keys)
    if hard:
        operands = x, codebooks, *_compared(codebooks, similarity, bilinear), temperature, residual, n_keys
        return Quantized(*_HardQuantize.apply(*operands))  # type: ignore[no-untyped-call]  # torch's Function is untyped
    left, codes, assignments = x, [], []
    for book in codebooks:
        compared, bias, centre = _compared(book.unsqueeze(0), similarity, bilinear)
        scores = _scores(_centred(left, centre, 0), compared, bias, 0)  # (U, W)
        soft = torch.softmax(scores / temperature, dim=-1)
        left = torch.addmm(left, soft, book, alpha=-1) if residual else left  # (U, D)
        codes.append(largest(scores))
        assignments.append(soft)
    assignment = torch.stack(assignments, dim=1)  # (U, B, W)
    total = x - left if residual else assignment.flatten(1) @ codebooks.flatten(0, 1)  # (U, D)
    return Quantized(torch.stack(codes, dim=1), assignment, total)


class _HardQuantize(torch.autograd.Function):
    """x (U, D), words, and what _compared gives of them -> Quantized."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, words: Tensor, compared: Tensor, bias: Any, centre: Any, *settings: Any) -> Any:
        temperature, residual, n_keys = settings
        codes = torch.empty(len(x), len(words), dtype=torch.int64, device=x.device)
        total, mark = torch.zeros_like(x), x.new_zeros(len(x), 1)  # mark is 0, or NaN where a score is
        for rows in _blocks(x, words):
            left = x[rows]
            for b, word in enumerate(words):
                scores = _scores(_centred(left, centre, b), compared, bias, b)  # (rows, W)
                codes[rows, b] = code = largest(scores)
                mark[rows] += scores.gather(1, code.unsqueeze(1)) / temperature * 0
                chosen = word.index_select(0, code)  # (rows, D)
                total[rows] += chosen
                left = left - chosen if residual else left
        ctx.save_for_backward(x, words, compared, bias, centre, codes)
        ctx.temperature, ctx.residual = temperature, residual
        ctx.set_materialize_grads(False)
        of_keys = codes[:n_keys].unsqueeze(2)  # (n_keys, B, 1)
        one = mark[:n_keys].add(1).unsqueeze(2).expand(of_keys.shape)
        assignment = x.new_zeros(n_keys, *words.shape[:2]).scatter_(2, of_keys, one)
        ctx.mark_non_differentiable(codes, *([] if n_keys else [assignment]))
        return codes, assignment, total.add_(mark)

    @staticmethod
    @differentiable_once
    def backward(ctx: Any, _: Tensor, d_assignment: Tensor | None, grad: Tensor | None) -> tuple[Tensor | None, ...]:
        x, words, compared, bias, centre, codes = ctx.saved_tensors
        d_words, d_compared, d_x = torch.zeros_like(words), torch.zeros_like(compared), torch.zeros_like(x)
        d_bias = None if bias is None else torch.zeros_like(bias)
        sharper, shift = compared / ctx.temperature, None if bias is None else bias / ctx.temperature
        for rows in _blocks(x, words):
            block, lefts, d_block = codes[rows].t(), [x[rows]], d_x[rows]
            for word, code in zip(words[:-1], block, strict=False):  # what each codebook read
                lefts.append(lefts[-1] - word.index_select(0, code) if ctx.residual else lefts[-1])
            for b in reversed(range(len(words))):
                d_word = torch.zeros_like(d_block) if grad is None else grad[rows]
                d_word = d_word - d_block if ctx.residual else d_word  # later codebooks read what this word leaves
                d_words[b].index_add_(0, block[b], d_word)
                d_soft = d_word @ words[b].t()  # (rows, W)
                if d_assignment is not None:
                    of_keys = d_assignment[rows, b]  # of the last blocks fewer, or none
                    d_soft[: len(of_keys)] += of_keys
                read = _centred(lefts[b], centre, b)
                soft = _scores(read, sharper, shift, b).softmax(dim=1)
                d_scores = torch.ops.aten._softmax_backward_data(d_soft, soft, 1, soft.dtype)
                d_compared[b].addmm_(d_scores.t(), read)
                if d_bias is not None:
                    d_bias[b] += d_scores.sum(dim=0)
                d_block.addmm_(d_scores, sharper[b])
        d_compared /= ctx.temperature
        if d_bias is not None:
            d_bias /= ctx.temperature
        return d_x, d_words, d_compared, d_bias, None, None, None, None


def _blocks(x: Tensor, words: Tensor) -> list[slice]:
    """Rows of x (U, D) whose scores with one codebook exist at once."""
    return cut_rows(len(x), words.shape[1], BLOCK_SCORES["cpu" if x.device.type == "cpu" else "cuda"])


def _centred(x: Tensor, centre: Tensor | None, b: int) -> Tensor:
    return x if centre is None else x - centre[b]


def _scores(x: Tensor, compared: Tensor, bias: Tensor | None, b: int) -> Tensor:
    """Scores (rows, W) of centred vectors (rows, D) with codebook b."""
    return x @ compared[b].t() if bias is None else torch.addmm(bias[b], x, compared[b].t())


def _compared(words: Tensor, similarity: str, bilinear: Tensor | None) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """compared (B, W, D), bias (B, W) and centre (B, 1, D) of codewords: a score is (x - centre) . compared + bias."""
    if similarity != "euclidean":
        return words if bilinear is None else words @ bilinear.t(), None, None
    # Without -|x - centre|^2, which all codewords have. The centre is their mean: far from the origin the squares would
    # hide in float32 which codeword is nearest.
    centre = words.detach().mean(dim=1, keepdim=True)
    shifted = words - centre
    return 2 * shifted, -shifted.square().sum(dim=2), centre
