r"""Decayed codeword histograms F_i = exp(-decay_i) F_{i-1} + E_i (LISA, Eq. 10; decay 0 is the paper's prefix sum).

The scan runs over blocks of S = G * T positions: T steps of the recurrence in all G chunks at once, then the chunks are
joined by a small triangular product. Every factor is a product of numbers in (0, 1], so nothing can overflow or be
divided by an underflowed number at any length; the histogram at the end of a block is carried into the next one.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

MAX_DECAY = 1e4
"""Decays above this are cut: exp(-1e4) is 0 in every dtype, and differences of finite sums stay finite."""


class BlockDecay(NamedTuple):
    """Decay factors of a block of G chunks of T steps, for M = 1 or n sequences.

    steps: T factors exp(-decay), numbers or (n * G, 1) tensors; fade (M, G, T, 1): what is left at each step of the
    histogram before the chunk; rise (M, G, T, 1): what is left of each step at the chunk's end; chunks (M, G, G):
    [i, j] is what is left at the end of chunk i of the end of chunk j; before (M, G, 1): of what preceded the block.
    """

    steps: Sequence[float] | Sequence[Tensor]
    fade: Tensor
    rise: Tensor
    chunks: Tensor
    before: Tensor


def block_decay(decay: Tensor, n_chunks: int, n_steps: int, dtype: torch.dtype) -> BlockDecay:
    """Prepare the factors of a block.

    Args:
        decay: float64, 0-d (every step of every sequence) or (n, S) with S = n_chunks * n_steps.
        n_chunks: G.
        n_steps: T.
        dtype: of the factors.

    Returns:
        BlockDecay, M = 1 for a 0-d decay and n otherwise.
    """
    steps: Sequence[float] | Sequence[Tensor]
    if decay.dim() == 0:
        steps = [float(decay.neg().exp())] * n_steps
        decay = decay.expand(1, n_chunks * n_steps)
    else:
        steps = decay.neg().exp().to(dtype).reshape(-1, n_steps, 1).unbind(dim=1)
    elapsed = decay.clamp(max=MAX_DECAY).reshape(-1, n_chunks, n_steps).cumsum(dim=2)  # (M, G, T)
    whole = elapsed[:, :, -1]  # (M, G)
    fade, rise = (x.to(dtype).exp().unsqueeze(-1) for x in (-elapsed, elapsed - whole.unsqueeze(-1)))
    ends = whole.cumsum(dim=1)
    chunks = (ends.unsqueeze(1) - ends.unsqueeze(2)).to(dtype).exp().tril()  # (M, G, G)
    return BlockDecay(steps, fade, rise, chunks, ends.neg().to(dtype).exp().unsqueeze(-1))


def _decayed_add(into: Tensor, previous: Tensor, factor: float | Tensor) -> None:
    if isinstance(factor, float):
        into.add_(previous, alpha=factor)
    else:
        into.addcmul_(previous, factor)


def scan_block(keys: Tensor, carry: Tensor, decay: BlockDecay) -> Tensor:
    """Turn the assignments of a block into the histograms after each of its steps.

    Args:
        keys: (n, S, C) contiguous assignments E, C = B * W columns; overwritten with the histograms F.
        carry: (n, C) histogram before the block.
        decay: of the block.

    Returns:
        (n, C) histogram at the end of the block, a copy.
    """
    n, _, columns = keys.shape
    n_chunks, n_steps = decay.fade.shape[1:3]
    lanes = keys.view(n * n_chunks, n_steps, columns).unbind(dim=1)
    if n_chunks == 1:
        _decayed_add(lanes[0], carry, decay.steps[0])
    for t in range(1, n_steps):
        _decayed_add(lanes[t], lanes[t - 1], decay.steps[t])
    if n_chunks == 1:
        return lanes[-1].clone()
    ends = decay.chunks @ lanes[-1].view(n, n_chunks, columns) + decay.before * carry.unsqueeze(1)  # (n, G, C)
    starts = torch.cat([carry.unsqueeze(1), ends[:, :-1]], dim=1)
    keys.view(n, n_chunks, n_steps, columns).addcmul_(decay.fade, starts.unsqueeze(2))
    return ends[:, -1]


def scan_block_backward(grad: Tensor, carry_grad: Tensor, decay: BlockDecay) -> Tensor:
    """Gradient of scan_block by its keys and its carry: the same scan, run from the last step to the first.

    Args:
        grad: (n, S, C) contiguous gradient that reaches each F_i directly; overwritten with the total gradient H_i of
            each F_i, which is also the gradient of E_i.
        carry_grad: (n, C) gradient that reaches the last F of the block through later blocks.
        decay: of the block.

    Returns:
        (n, C) gradient of the carry.
    """
    n, _, columns = grad.shape
    n_chunks, n_steps = decay.fade.shape[1:3]
    lanes = grad.view(n * n_chunks, n_steps, columns).unbind(dim=1)
    if n_chunks == 1:
        lanes[-1].add_(carry_grad)
    for t in range(n_steps - 1, 0, -1):
        _decayed_add(lanes[t - 1], lanes[t], decay.steps[t])
    first = decay.fade[:, :, 0]  # (M, G, 1)
    if n_chunks > 1:
        own = lanes[0].view(n, n_chunks, columns) * first  # (n, G, C)
        later = torch.cat([own[:, 1:], carry_grad.unsqueeze(1)], dim=1)
        into_ends = decay.chunks.transpose(1, 2) @ later
        grad.view(n, n_chunks, n_steps, columns).addcmul_(decay.rise, into_ends.unsqueeze(2))
    return grad[:, 0] * first[:, 0]


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
