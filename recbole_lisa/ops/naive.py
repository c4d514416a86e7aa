"""Naive references of operators other than LISA: slow, plain formulas. For tests and benchmarks only."""

import math

import numpy as np
import torch
from torch import Tensor

from recbole_lisa.ops.dropout_bits import Mask


def causal_softmax_attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Compute softmax(q k^T / sqrt(D) + causal mask) v, all (N, L, D)."""
    logits = query @ key.transpose(1, 2) / math.sqrt(query.shape[-1])
    future = torch.ones(logits.shape[-2:], dtype=torch.bool, device=logits.device).triu(diagonal=1)
    return logits.masked_fill(future, float("-inf")).softmax(dim=-1) @ value


def gated_recurrence(query: Tensor, key: Tensor, value: Tensor, gate: Tensor) -> tuple[Tensor, None]:
    """S_i = diag(exp gate_i) S_{i-1} + k_i v_i^T and S_i^T q_i / sqrt(K), step by step."""
    state = value.new_zeros(*key[:, 0].shape, value.shape[-1])  # (N, H, K, V)
    out = []
    for i in range(query.shape[1]):
        state = gate[:, i].exp().unsqueeze(-1) * state + key[:, i].unsqueeze(-1) * value[:, i].unsqueeze(-2)
        out.append((query[:, i].unsqueeze(-2) @ state).squeeze(-2) / math.sqrt(query.shape[-1]))
    return torch.stack(out, dim=1), None


def quantize(
    x: Tensor, codebooks: Tensor, *, bilinear: Tensor | None, similarity: str, temperature: float, residual: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Soft residual or parallel encoding, one vector and one codebook at a time.

    Arguments as ops.quantize; returns codes (U, B), soft assignment (U, B, W), reconstruction (U, D).
    """
    codes, assignments, reconstructions = [], [], []
    for row in x:
        left, total, row_codes, row_p = row, torch.zeros_like(row), [], []
        for book in codebooks:
            if similarity == "euclidean":
                scores = -((left - book) ** 2).sum(dim=-1)
            else:
                scores = book @ (left @ bilinear if similarity == "bilinear" else left)
            p = torch.softmax(scores / temperature, dim=-1)
            word = p @ book
            row_codes.append(scores.argmax())
            row_p.append(p)
            total = total + word
            left = left - word if residual else row
        codes.append(torch.stack(row_codes))
        assignments.append(torch.stack(row_p))
        reconstructions.append(total)
    return torch.stack(codes), torch.stack(assignments), torch.stack(reconstructions)


def dropout_mask(mask: Mask, n_rows: int, width: int) -> Tensor:
    """What encoder_kernels.fill_mask keeps, (n_rows, width) bool: the two halves of a hash of 32 bits serve a pair."""
    half = -(-width // 2)
    row, column = np.arange(n_rows, dtype=np.uint64)[:, None], np.arange(half, dtype=np.uint64)
    x = (row * np.uint64(half) + column).astype(np.uint32) ^ mask.seed[0]
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
        x = (x ^ (x >> np.uint32(shift))) * np.uint32(factor)
    x = (x ^ (x >> np.uint32(16))) + mask.seed[1]
    halves = np.concatenate([x & np.uint32(0xFFFF), x >> np.uint32(16)], axis=1)
    return torch.from_numpy(halves[:, :width] >= mask.threshold)
