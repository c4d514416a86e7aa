r"""Attention inside buckets, at a cost linear in the length: sort by bucket, cut into chunks, look one chunk back.

Two rules say which keys a query may see (w is the length of a chunk, ranks count in the sorted order):

- in its bucket, at most w ranks back: the earlier members of a bucket are the same whatever follows, so that the
  result at a position depends on the past only;
- in its chunk and the one before, at positions up to its own: the published rule of Reformer. Where chunks begin
  depends on all positions, so that the selection sees the future.

Both serve queries that are their own keys: a position sees itself only when nothing else is visible.
"""

from typing import NamedTuple

import torch
from torch import Tensor

SELF_LOGIT = -5e4
"""Logit of a position's own key: below every other, above what is masked."""


class Attended(NamedTuple):
    """Result per position: out (G, L, D), and the logarithm of the softmax denominator, log_mass (G, L)."""

    out: Tensor
    log_mass: Tensor


def take_rows(x: Tensor, index: Tensor) -> Tensor:
    """x[g, index[g]].

    Args:
        x: (G, L, ...).
        index: (G, M), int64.

    Returns:
        (G, M, ...).
    """
    offsets = torch.arange(x.shape[0], device=x.device).unsqueeze(1) * x.shape[1]
    rows = x.flatten(0, 1).index_select(0, (index + offsets).flatten())
    return rows.view(*index.shape, *x.shape[2:])


def split(x: Tensor, size: int) -> Tensor:
    """Cut the second dimension into pieces: (G, C * size, ...) -> (G, C, size, ...)."""
    return x.reshape(x.shape[0], x.shape[1] // size, size, *x.shape[2:])


def chunk_attention(query: Tensor, key: Tensor, value: Tensor, visible: Tensor, own: Tensor) -> Attended:
    """softmax(query key^T) value within chunks.

    Args:
        query: (G, C, w, D), scaled.
        key: (G, C, m, D).
        value: (G, C, m, D).
        visible: keys that count, own ones excluded; broadcasts to (G, C, w, m).
        own: keys of the query's own position, with logit SELF_LOGIT; broadcasts to (G, C, w, m).

    Returns:
        out (G, C * w, D) and log_mass (G, C * w); a row that sees nothing is finite and means nothing.
    """
    logits = query @ key.transpose(-1, -2)  # (G, C, w, m)
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    lowest = logits.new_tensor(torch.finfo(logits.dtype).min)
    logits = torch.where(visible, logits, torch.where(own, SELF_LOGIT, lowest))
    top = logits.detach().amax(dim=-1, keepdim=True)  # (G, C, w, 1)
    weights = torch.exp(logits - top)
    mass = weights.sum(dim=-1, keepdim=True)  # (G, C, w, 1), at least 1
    out = weights.to(value.dtype) @ value / mass.to(value.dtype)  # (G, C, w, D)
    return Attended(out.flatten(1, 2), (top + mass.log()).flatten(1))


def bucket_attention(query: Tensor, key: Tensor, value: Tensor, bucket: Tensor, *, window: int) -> Attended:
    """Attention to the earlier members of a position's bucket, at most `window` ranks back, itself last.

    Strictly causal, O(L w D). Padding is kept out by a bucket number that no real position has.

    Args:
        query: (G, L, D), scaled.
        key: (G, L, D).
        value: (G, L, D).
        bucket: (G, L), int64; within a bucket the order of positions is kept.
        window: w, length of a chunk.

    Returns:
        out (G, L, D) and log_mass (G, L), in the order of positions.
    """
    length = bucket.shape[1]
    window = min(window, length)
    spare = -length % window
    order = bucket.sort(dim=1, stable=True).indices  # (G, L)
    place = order.argsort(dim=1)

    def chunks(x: Tensor, fill: float = 0) -> Tensor:
        tail = x.new_full((x.shape[0], spare, *x.shape[2:]), fill)
        return split(torch.cat([take_rows(x, order), tail], dim=1), window)  # (G, C, w, ...)

    def with_previous(x: Tensor, fill: float = 0) -> Tensor:
        before = torch.cat([torch.full_like(x[:, :1], fill), x[:, :-1]], dim=1)
        return torch.cat([before, x], dim=2)  # (G, C, 2 w, ...)

    label = chunks(bucket, fill=-1)
    back = torch.arange(window, 2 * window, device=bucket.device).unsqueeze(1) - torch.arange(
        2 * window, device=bucket.device
    )  # (w, 2 w) ranks back from query to key
    same = label.unsqueeze(-1) == with_previous(label, fill=-2).unsqueeze(-2)  # (G, C, w, 2 w)
    attended = chunk_attention(
        chunks(query),
        with_previous(chunks(key)),
        with_previous(chunks(value)),
        visible=same & (back > 0) & (back <= window),
        own=back == 0,
    )
    return Attended(take_rows(attended.out, place), attended.log_mass[:, :length].gather(1, place))


def chunked_round_attention(
    query: Tensor, key: Tensor, value: Tensor, bucket: Tensor, lengths: Tensor, *, window: int
) -> Attended:
    """Reformer's published rule: each chunk and the one before, across buckets, keys at positions up to the query's.

    The rounds of one sequence follow each other and the chunks form a ring: the first chunk of a round looks back to
    the last one of the round before, the first of all to the last of all. Chunks of padding are left out of the ring,
    so that padding changes nothing. Sees the future: where the chunks begin depends on all positions.

    Args:
        query: (N, L, D), scaled.
        key: (N, L, D).
        value: (N, L, D).
        bucket: (N, R, L), int64; padding in the last bucket.
        lengths: (N,) real positions.
        window: w, length of a chunk.

    Returns:
        out (N * R, L, D) and log_mass (N * R, L), in the order of positions.
    """
    n, n_rounds, length = bucket.shape
    spare = -length % window
    n_chunks = (length + spare) // window
    order = bucket.sort(dim=2, stable=True).indices
    place = order.flatten(0, 1).argsort(dim=1)  # (N R, L)
    beyond = torch.arange(length, length + spare, device=order.device).expand(n, n_rounds, spare)
    position = torch.cat([order, beyond], dim=2).view(n, n_rounds * n_chunks, window)  # (N, R C, w)
    rows = torch.cat([order, torch.zeros_like(beyond)], dim=2).flatten(1)  # (N, R C w)
    previous = _ring(lengths, n_rounds, n_chunks, window)  # (N, R C)

    def chunks(x: Tensor) -> Tensor:
        return split(take_rows(x, rows), window)  # (N, R C, w, D)

    def with_previous(x: Tensor) -> Tensor:
        return torch.cat([take_rows(x, previous), x], dim=2)  # (N, R C, 2 w, ...)

    query_at, key_at = position.unsqueeze(-1), with_previous(position).unsqueeze(-2)
    attended = chunk_attention(
        chunks(query),
        with_previous(chunks(key)),
        with_previous(chunks(value)),
        visible=key_at < query_at,
        own=key_at == query_at,
    )
    out = attended.out.view(n * n_rounds, n_chunks * window, -1)
    return Attended(take_rows(out, place), attended.log_mass.view(n * n_rounds, -1).gather(1, place))


def _ring(lengths: Tensor, n_rounds: int, n_chunks: int, window: int) -> Tensor:
    """The chunk before each chunk, (N, R C): the one before it, or for a round's first the last real one before."""
    last = ((lengths - 1).clamp_min(0) // window).unsqueeze(1)  # (N, 1)
    chunk = torch.arange(n_rounds * n_chunks, device=lengths.device)
    round_before = (chunk // n_chunks - 1) % n_rounds
    return torch.where(chunk % n_chunks == 0, round_before * n_chunks + last, chunk - 1)


def merge_rounds(attended: Attended, n_rounds: int) -> Tensor:
    """One softmax over all rounds: sum_r softmax_r(log_mass_r) out_r.

    Args:
        attended: out (N * R, L, D), log_mass (N * R, L).
        n_rounds: R.

    Returns:
        (N, L, D).
    """
    if n_rounds == 1:
        return attended.out
    length, width = attended.out.shape[1:]
    out = attended.out.view(-1, n_rounds, length, width)  # (N, R, L, D)
    weights = torch.softmax(attended.log_mass.view(-1, n_rounds, length), dim=1)  # (N, R, L)
    return torch.sum(out * weights.unsqueeze(-1).to(out.dtype), dim=1)


def bucket_attention_last(
    query: Tensor, key: Tensor, value: Tensor, bucket: Tensor, final: Tensor, *, window: int
) -> Attended:
    """bucket_attention at one position of each row, O(L D).

    Args:
        query: (G, D), scaled.
        key: (G, L, D).
        value: (G, L, D).
        bucket: (G, L), int64.
        final: (G,), the position asked for.
        window: w.

    Returns:
        out (G, 1, D) and log_mass (G, 1).
    """
    position = torch.arange(bucket.shape[1], device=bucket.device)
    member = (bucket == bucket.gather(1, final.unsqueeze(1))) & (position <= final.unsqueeze(1))  # (G, L)
    back = member.sum(dim=1, keepdim=True) - member.cumsum(dim=1)  # ranks back from the final position
    own = position == final.unsqueeze(1)
    return chunk_attention(
        query[:, None, None],
        key.unsqueeze(1),
        value.unsqueeze(1),
        visible=(member & (back <= window) & ~own)[:, None, None],
        own=own[:, None, None],
    )
