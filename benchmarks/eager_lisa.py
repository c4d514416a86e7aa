"""LISA as the paper writes it down, with every intermediate tensor: the naive side of the benchmarks."""

import torch
from torch import Tensor


def lisa_attention_eager(
    codes: Tensor, table: Tensor, values: Tensor, *, assignment: Tensor, decay: float = 0.0
) -> Tensor:
    """The paper's Algorithm 1 written out, every intermediate an (N, L, B, W) tensor kept by autograd.

    Arguments as of recbole_lisa.ops.lisa_attention; a decay is accurate only while decay * L stays below about 80.
    """
    weights = _eager_weights(codes, table, assignment, decay)
    return torch.einsum("nlbw,bwd->nld", weights, values)


def lisa_attention_per_codebook(
    codes: Tensor, table: Tensor, values: Tensor, *, assignment: Tensor, decay: float = 0.0
) -> Tensor:
    """As lisa_attention_eager, but with one product a codebook, as the paper describes it: a (N, L, B, D) tensor."""
    weights = _eager_weights(codes, table, assignment, decay)
    return torch.einsum("nlbw,bwd->nlbd", weights, values).sum(dim=2)


def _eager_weights(codes: Tensor, table: Tensor, assignment: Tensor, decay: float) -> Tensor:
    """Attention over codewords, (N, L, B, W)."""
    length = codes.shape[1]
    if decay:
        steps = torch.arange(length, dtype=assignment.dtype, device=assignment.device)
        grow = torch.exp(decay * steps).view(1, -1, 1, 1)
        histogram = (assignment * grow).cumsum(dim=1) / grow
    else:
        histogram = assignment.cumsum(dim=1)  # (N, L, B, W)
    books = torch.arange(codes.shape[-1], device=codes.device)
    weights = histogram * table.exp()[books, codes]  # (N, L, B, W)
    return weights / weights.sum(dim=-1, keepdim=True)


def quantize_eager(
    x: Tensor, codebooks: Tensor, *, bilinear: Tensor, temperature: float, hard: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Residual bilinear encoding of all positions of a batch, with repeats: one (U, D) x (D, D) product a codebook."""
    left, codes, assignments = x, [], []
    for book in codebooks:
        scores = (left @ bilinear) @ book.t()
        soft = torch.softmax(scores / temperature, dim=-1)
        code = scores.argmax(dim=-1)
        one_hot = torch.nn.functional.one_hot(code, book.shape[0]).to(soft.dtype)
        assignment = one_hot + soft - soft.detach() if hard else soft
        left = left - assignment @ book
        codes.append(code)
        assignments.append(assignment)
    assignment = torch.stack(assignments, dim=1)  # (U, B, W)
    return torch.stack(codes, dim=1), assignment, torch.einsum("ubw,bwd->ud", assignment, codebooks)
