"""Naive references of LISA, outside the wheel: plain formulas for tests, and the paper's algorithm for benchmarks."""

import torch
from torch import Tensor

MAX_EXPONENT = 600.0  # scores of absent codewords are cut here, so that 0 * exp(score) is 0; they matter to no output


def decayed_histogram(keys: Tensor, decay: Tensor) -> Tensor:
    """F_i = exp(-decay_i) F_{i-1} + E_i, step by step: keys (N, L, B, W), decay (N, L) -> (N, L, B, W)."""
    steps = []
    current = torch.zeros_like(keys[:, 0])
    for i in range(keys.shape[1]):
        current = torch.exp(-decay[:, i, None, None]) * current + keys[:, i]
        steps.append(current)
    return torch.stack(steps, dim=1)


def lisa_attention(
    codes: Tensor,
    table: Tensor,
    values: Tensor,
    *,
    assignment: Tensor | None = None,
    decay: float | Tensor = 0.0,
    valid: Tensor | None = None,
    causal: bool = True,
    straight_through: bool = False,
) -> Tensor:
    """Quadratic LISA: every query compares itself with every earlier position, codebook by codebook.

    Query i gives key j the weight exp(-(decay_{j+1} + ... + decay_i)) * sum_w E[j, w] exp(T[q_i, w]), normalised over
    j; its value is the E-weighted mean of the codeword values. Arguments and result as in ops.lisa_attention.
    straight_through scales the gradient of faded keys where exp(T) / Z is above 1, down to what 1 would give.
    """
    n, length, n_codebooks = codes.shape
    if assignment is None:
        assignment = torch.nn.functional.one_hot(codes, table.shape[-1]).to(values.dtype)
    if valid is None:
        valid = torch.ones(n, length, dtype=torch.bool)
    steps = torch.as_tensor(decay, dtype=values.dtype).expand(n, length)
    elapsed = torch.zeros(n, length, length, dtype=values.dtype)
    for i in range(length):
        for j in range(i):
            elapsed[:, i, j] = steps[:, j + 1 : i + 1].sum(dim=1)
    allowed = valid[:, None, :] & (torch.ones(length, length, dtype=torch.bool).tril() if causal else True)
    out = torch.zeros(n, length, values.shape[-1], dtype=values.dtype)
    for b in range(n_codebooks):
        scores = table[b][codes[:, :, b]]  # (N, L, W)
        keys = assignment[:, :, b]  # (N, L, W)
        present = (allowed.to(keys.dtype) @ keys.detach()) > 0  # (N, L, W)
        peak = scores.detach().masked_fill(~present, -torch.inf).amax(dim=-1, keepdim=True)
        scores = (scores - peak.nan_to_num(neginf=0.0)).clamp(max=MAX_EXPONENT).exp()
        faded = keys[:, None, :, :] * (torch.exp(-elapsed) * allowed).unsqueeze(-1)  # (N, L queries, L keys, W)
        if straight_through:
            slope = scores / (scores.unsqueeze(2) * faded).sum(dim=(2, 3)).clamp_min(1e-300).unsqueeze(-1)  # (N, L, W)
            faded = _bounded_gradient(faded, slope.unsqueeze(2))
        pair = scores[:, :, None, :] * faded
        total = pair.sum(dim=(2, 3))  # (N, L)
        weight = pair.sum(dim=2) / torch.where(total > 0, total, torch.ones_like(total)).unsqueeze(-1)
        out = out + weight @ values[b]
    return out * valid.unsqueeze(-1)


def _bounded_gradient(keys: Tensor, slope: Tensor) -> Tensor:
    """`keys`, whose gradient is scaled to what it would be if `slope`, exp(T) / Z, were at most 1."""
    kept = (slope.clamp_max(1.0) / slope).detach()
    return keys.detach() + kept * (keys - keys.detach())


def exact_values_attention(
    codes: Tensor, table: Tensor, values: Tensor, *, assignment: Tensor, decay: float | Tensor = 0.0, valid: Tensor
) -> Tensor:
    """Softmax attention over quantised keys, all pairs: values (N, L, D), the rest as in lisa_attention.

    The logits of codebook b, for D / B dimensions of the values, are log sum_w E[j, w] exp(T[q_i, w]) - decay (i - j):
    T[q_i, code_j] for hard keys. A decay is a number or one a codebook, (B,).
    """
    length = codes.shape[1]
    age = torch.arange(length).unsqueeze(1) - torch.arange(length)  # (L, L), i - j
    rates = torch.as_tensor(decay, dtype=values.dtype).expand(len(table))
    out = []
    for b, part in enumerate(values.chunk(len(table), dim=2)):
        scores = torch.einsum("niw,njw->nij", table[b][codes[:, :, b]].exp(), assignment[:, :, b]).log()
        logits = (scores - rates[b] * age).masked_fill((age < 0) | ~valid[:, None, :], -torch.inf)
        out.append(logits.softmax(dim=-1).nan_to_num(0.0) @ part)
    return torch.cat(out, dim=2) * valid.unsqueeze(-1)


def lisa_attention_eager(
    codes: Tensor,
    table: Tensor,
    values: Tensor,
    *,
    assignment: Tensor,
    decay: float = 0.0,
    straight_through: bool = False,
) -> Tensor:
    """The paper's Algorithm 1 written out, every intermediate an (N, L, B, W) tensor kept by autograd.

    Arguments as of recbole_lisa.ops.lisa_attention; a decay is accurate only while decay * L stays below about 80.
    """
    weights = _eager_weights(codes, table, assignment, decay, straight_through=straight_through)
    return torch.einsum("nlbw,bwd->nld", weights, values)


def lisa_attention_per_codebook(
    codes: Tensor, table: Tensor, values: Tensor, *, assignment: Tensor, decay: float = 0.0
) -> Tensor:
    """As lisa_attention_eager, but with one product a codebook, as the paper describes it: a (N, L, B, D) tensor."""
    weights = _eager_weights(codes, table, assignment, decay)
    return torch.einsum("nlbw,bwd->nlbd", weights, values).sum(dim=2)


def _eager_weights(
    codes: Tensor, table: Tensor, assignment: Tensor, decay: float, *, straight_through: bool = False
) -> Tensor:
    """Attention over codewords, (N, L, B, W)."""
    length = codes.shape[1]
    if decay:
        steps = torch.arange(length, dtype=assignment.dtype, device=assignment.device)
        grow = torch.exp(decay * steps).view(1, -1, 1, 1)
        histogram = (assignment * grow).cumsum(dim=1) / grow
    else:
        histogram = assignment.cumsum(dim=1)  # (N, L, B, W)
    books = torch.arange(codes.shape[-1], device=codes.device)
    scores = table.exp()[books, codes]  # (N, L, B, W)
    if straight_through:
        histogram = _bounded_gradient(histogram, scores / (histogram * scores).sum(dim=-1, keepdim=True))
    weights = histogram * scores  # (N, L, B, W)
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
