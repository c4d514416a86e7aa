r"""The decayed histogram of a whole sequence, and one step of it (LISA, Eq. 10; decay 0 is the paper's prefix sum).

F_i = exp(-decay_i) F_{i-1} + E_i
"""

import torch
from torch import Tensor

MAX_DECAY = 1e4
"""Decays above this are cut: exp(-1e4) is 0 in every dtype, and differences of finite sums stay finite."""


def last_histogram(
    items: Tensor, codes: Tensor, n_codewords: int, *, assignment: Tensor | None, decay: Tensor, valid: Tensor
) -> Tensor:
    """The histogram (N, B, W) at each row's final valid position, without any (N, L, B, W) tensor.

    items (N, L) are rows of the soft keys assignment (U, B, W), or without them of the hard keys codes (U, B). decay is
    float64, 0-d or (N, L), valid (N, L) bool. O(L B) additions for hard keys, O(L B W) for soft ones.
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
    """One step of the recurrence, O(B W) at any position: the histogram (N, B, W) after it.

    keys is the assignment of the new item (N, B, W), or its codes (N, B) int64; decay is 0-d, (N,) or (1, B).
    """
    faded = histogram * torch.exp(-decay).to(histogram.dtype).reshape(*decay.shape, *[1] * (3 - decay.dim()))
    if keys.dim() == 3:
        return faded + keys
    return faded.scatter_add_(2, keys.unsqueeze(2), faded.new_ones(*keys.shape, 1))
