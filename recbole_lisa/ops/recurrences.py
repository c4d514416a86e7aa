"""Linear recurrences, those with a decay in chunks of C positions: matrix products inside, one state between chunks.

All exponents are at most 0, so that nothing overflows at any length; checked on the CPU.
"""

import math
from itertools import accumulate

import torch
from torch import Tensor
from torch.nn.functional import pad

from recbole_lisa.ops.checks import check_operands, check_range

CHUNK = 24
"""Most positions of a chunk."""

FASTEST = 2.0**100
"""Largest decay of a step, the same number in float32 and float64: sums of them are finite in float32."""
LOG_FASTEST = math.log(FASTEST) - 0.1
"""A logarithm of a decay, so far below that of FASTEST that exp in float32 stays below it."""


def sums_before(x: Tensor) -> Tensor:
    """Sum of all entries before each one: out_u = x_0 + ... + x_{u-1}, 0 for the first; x (N, U, ...).

    cumsum(x) - x would leave the rounding of x_u in the sum before it.
    """
    return torch.cat([torch.zeros_like(x[:, :1]), x[:, :-1]], dim=1).cumsum(dim=1)


def _carry(state: Tensor, factors: Tensor, added: Tensor) -> list[Tensor]:
    """s_0 = state, s_{k+1} = factors_k s_k + added_k: the K + 1 states before, between and after K chunks."""
    return list(accumulate(zip(factors, added, strict=True), lambda s, chunk: chunk[0] * s + chunk[1], initial=state))


def chunks(length: int, largest: int) -> tuple[int, int]:
    """How many chunks, and the size of each: the smallest that needs no more of them than `largest` does."""
    size = -(-length // -(-length // largest))
    return -(-length // size), size


def diagonal_recurrence(state: Tensor, decay: Tensor, angle: Tensor, u: Tensor) -> Tensor:
    """h_t = exp(-decay + i angle) h_{t-1} + u_t: h (H, N, L) in O(L C) a channel.

    state (H, N) is h before the first position; decay (H,) is at least 0, angle (H,) in radians; state and u (H, N, L)
    are complex.
    """
    forms = "u: complex H N L+; state: complex H N; decay: floating-point H; angle: floating-point H"
    check_operands(forms, u, state, decay, angle)
    check_range("decay", decay, 0, FASTEST)
    h, n, length = u.shape
    n_chunks, chunk = chunks(length, CHUNK)
    x = pad(u, (0, -length % chunk)).view(h, n * n_chunks, chunk)  # (H, N K, C)
    steps = torch.arange(chunk + 1, device=u.device)
    log_radius, turn = (torch.outer(y.double(), steps.double()) for y in (-decay, angle))
    power = torch.polar(log_radius.exp(), turn).to(u.dtype)  # (H, C + 1)
    added = (x @ power[:, :chunk].flip(1).unsqueeze(-1)).view(h, n, n_chunks).movedim(2, 0)  # (K, H, N)
    before = _carry(state, power[:, chunk:].expand(len(added), -1, -1), added)[:-1]
    lag = steps[1:] - steps.unsqueeze(1)  # (C + 1, C), from the carried state and from each position of a chunk
    kernel = torch.where(lag >= 0, power[:, lag.clamp_min(0)], 0)  # (H, C + 1, C)
    out = torch.cat([torch.stack(before, dim=2).view(h, n * n_chunks, 1), x], dim=-1) @ kernel  # (H, N K, C)
    return out.view(h, n, n_chunks * chunk)[..., :length]


def selective_recurrence(state: Tensor, a: Tensor, x: Tensor, b: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    """S_t = exp(a_t) S_{t-1} + x_t b_t^T: y_t = S_t c_t (N, L, H, P) and the last S_t, in O(L (C + S) P) a head.

    state (N, H, P, S) is before the first position; a (N, L, H) is in -FASTEST..0; x (N, L, H, P); the heads share
    b and c (N, L, S).
    """
    check_operands("x: N L+ H P; a: N L H; b: N L S; c: N L S; state: N H P S", x, a, b, c, state)
    check_range("a", a, -FASTEST, 0)
    n, length = x.shape[:2]
    n_chunks, chunk = chunks(length, CHUNK)
    extra, shape = n_chunks * chunk - length, (n, n_chunks, chunk)
    a, x, b, c = (pad(y, (*[0, 0] * (y.ndim - 2), 0, extra)).view(*shape, *y.shape[2:]) for y in (a, x, b, c))
    x, total = x.transpose(2, 3), a.transpose(2, 3).cumsum(dim=-1)  # (N, K, H, C, P), (N, K, H, C)
    future = torch.ones(chunk, chunk, dtype=torch.bool, device=x.device).triu(diagonal=1)
    between = (total.unsqueeze(-1) - total.unsqueeze(-2)).masked_fill(future, -torch.inf).exp()  # (N, K, H, C, C)
    inside = (between * (c @ b.transpose(2, 3)).unsqueeze(2)) @ x  # (N, K, H, C, P)
    added = (between[..., -1, :].unsqueeze(-1) * x).transpose(3, 4) @ b.unsqueeze(2)  # (N, K, H, P, S)
    kept = total[..., -1].exp()[..., None, None]  # (N, K, H, 1, 1)
    *before, after = _carry(state, kept.transpose(0, 1), added.transpose(0, 1))
    carried = c.unsqueeze(2) @ torch.stack(before, dim=1).transpose(3, 4)  # (N, K, H, C, P)
    y = torch.addcmul(inside, total.exp().unsqueeze(-1), carried)
    return y.transpose(2, 3).flatten(1, 2)[:, :length], after
