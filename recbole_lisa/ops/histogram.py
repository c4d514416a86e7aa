r"""Decayed codeword histograms F_i = exp(-decay_i) F_{i-1} + E_i (LISA, Eq. 10; decay 0 is the paper's prefix sum).

The scan runs over blocks of T positions. Inside a block the decays form a lower-triangular matrix whose entries
are products of factors in (0, 1], so nothing can overflow or be divided by an underflowed number at any length;
the histogram at the end of a block is carried into the next one.
"""

import torch
from torch import Tensor

MAX_DECAY = 1e4
"""Decays above this are cut: exp(-1e4) is 0 in every dtype, and differences of finite sums stay finite."""


def decay_matrix(decay: Tensor, dtype: torch.dtype) -> Tensor:
    """Products of decay factors inside one block.

    Args:
        decay: (M, T) float64 decay of each step, M = 1 when all sequences share one decay.
        dtype: of the result.

    Returns:
        (M, T, T + 1): column 0 holds prod_{k<=i} exp(-decay_k), the weight of the carried histogram at step i;
        column j + 1 holds prod_{j<k<=i} exp(-decay_k), the weight of step j at step i, and 0 for j > i.
    """
    elapsed = decay.clamp(max=MAX_DECAY).cumsum(dim=1)  # (M, T)
    start = torch.cat([elapsed.new_zeros(elapsed.shape[0], 1), elapsed], dim=1)  # (M, T + 1)
    weights = (start.unsqueeze(1) - elapsed.unsqueeze(2)).to(dtype).exp()  # (M, T, T + 1)
    return weights.tril(diagonal=1)


def scan_block(keys: Tensor, carry: Tensor, weights: Tensor) -> Tensor:
    """Histograms after each step of a block.

    Args:
        keys: (N, T, C) assignments E, C = B * W columns.
        carry: (N, C) histogram before the block.
        weights: (1 or N, T, T + 1) from decay_matrix.

    Returns:
        (N, T, C) histograms F.
    """
    histogram = weights[:, :, 1:] @ keys  # (N, T, C)
    return histogram.addcmul_(weights[:, :, :1], carry.unsqueeze(1))


def scan_block_backward(grad: Tensor, carry_grad: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Gradient of scan_block by its keys and its carry: the same scan, run from the last step to the first.

    Args:
        grad: (N, T, C) gradient that reaches each F_i directly; its last step is edited in place.
        carry_grad: (N, C) gradient that reaches the last F of the block through later blocks.
        weights: (1 or N, T, T + 1) from decay_matrix.

    Returns:
        (N, T, C) total gradient H_i of each F_i, equal to the gradient of E_i, and (N, C) of the carry.
    """
    grad[:, -1] += carry_grad
    total = weights[:, :, 1:].transpose(1, 2) @ grad  # (N, T, C)
    return total, total[:, 0] * weights[:, 0, :1]


def last_histogram(
    items: Tensor, codes: Tensor, n_codewords: int, *, assignment: Tensor | None, decay: Tensor, valid: Tensor
) -> Tensor:
    """The histogram at each row's final valid position, without any (N, L, B, W) tensor.

    Args:
        items: (N, L) rows of codes and assignment.
        codes: (U, B) hard keys, used when assignment is None.
        n_codewords: W.
        assignment: (U, B, W) soft keys, or None.
        decay: 0-d or (N, L) float64 decay of each step.
        valid: (N, L) bool.

    Returns:
        (N, B, W) histogram, O(L B) additions for hard keys and O(L B W) for soft ones.
    """
    n, length = items.shape
    n_codebooks = codes.shape[1]
    elapsed = decay.clamp(max=MAX_DECAY).expand(n, length).masked_fill(~valid, 0.0).cumsum(dim=1)  # (N, L)
    weight = (elapsed - elapsed[:, -1:]).exp() * valid  # (N, L)
    if assignment is not None:
        table = assignment.flatten(1)  # (U, B * W)
        pooled = torch.nn.functional.embedding_bag(items, table, mode="sum", per_sample_weights=weight.to(table.dtype))
        return pooled.view(n, n_codebooks, n_codewords)
    keys = codes.index_select(0, items.flatten()).view(n, length, n_codebooks)  # (N, L, B)
    histogram = weight.new_zeros(n, n_codebooks, n_codewords)
    return histogram.scatter_add_(2, keys.transpose(1, 2), weight.unsqueeze(1).expand(-1, n_codebooks, -1))


def histogram_step(histogram: Tensor, keys: Tensor, decay: Tensor) -> Tensor:
    """One step of the recurrence, O(B W) at any position.

    Args:
        histogram: (N, B, W) before the step.
        keys: (N, B, W) assignment of the new item.
        decay: 0-d or (N,) decay of the step.

    Returns:
        (N, B, W) histogram after the step.
    """
    return histogram * torch.exp(-decay).to(histogram.dtype).reshape(-1, 1, 1) + keys
