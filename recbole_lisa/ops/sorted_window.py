r"""Attention inside buckets, at a cost linear in the length: sort by bucket, cut into chunks, look one chunk back.

Two rules say which keys a query may see (w is the length of a chunk, ranks count in the sorted order):

- in its bucket, at most w ranks back: the earlier members of a bucket are the same whatever follows, so that the
  result at a position depends on the past only;
- in its chunk and the one before, at positions up to its own: the published rule of Reformer. Where chunks begin
  depends on all positions, so that the selection sees the future.

Both serve queries that are their own keys: a position sees itself only when nothing else is visible. Several rounds of
buckets share one softmax, in which a pair counts as often as it meets.
"""

import math
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from recbole_lisa.ops.checks import check_mask, check_operands, check_range, check_sizes
from recbole_lisa.ops.numba_threads import check_rows

SELF_LOGIT = -5e4
"""Logit of a position's own key: below every other, above what is masked."""

BLOCK_LOGITS = 2**22
"""Logits of one tensor on a CPU: 16 MiB in float32, which the allocator reuses; larger ones cost page faults."""


def take_rows(x: Tensor, index: Tensor) -> Tensor:
    """x[n, index[n]]: x (N, L, ...), index (N, M) int64 -> (N, M, ...); an IndexError outside of 0..L-1."""
    check_operands("index: int64 N M", index)
    if not isinstance(x, Tensor) or x.dim() < 2 or len(x) != len(index):
        is_now = tuple(x.shape) if isinstance(x, Tensor) else type(x).__name__
        raise ValueError(f"x must be (N, L, ...) with N = {len(index)}, got {is_now}")
    check_rows(index, x.shape[1], "index")
    offsets = torch.arange(x.shape[0], device=x.device).unsqueeze(1) * x.shape[1]
    rows = x.flatten(0, 1).index_select(0, (index + offsets).flatten())
    return rows.view(*index.shape, *x.shape[2:])


def split(x: Tensor, size: int) -> Tensor:
    """Cut the second dimension into pieces: (N, C * size, ...) -> (N, C, size, ...)."""
    check_sizes(size=size)
    if x.dim() < 2 or x.shape[1] % size:
        raise ValueError(f"size must divide the length of x, (N, L, ...), got {size} and {tuple(x.shape)}")
    return x.reshape(x.shape[0], x.shape[1] // size, size, *x.shape[2:])


def chunk_logits(query: Tensor, key: Tensor, visible: Tensor, own: Tensor) -> Tensor:
    """query key^T / sqrt(D) inside chunks: query (N, C, w, D), key (N, C, m, D) -> (N, C, w, m), at least float32.

    `visible` says which keys count, without the query's own; `own` is that of its position, with logit SELF_LOGIT. Both
    broadcast to (N, C, w, m), C from them where the query has 1. What is masked has the lowest finite number.
    """
    check_operands("query: N C w D; key: N C m D", query, key)
    for name, mask in {"visible": visible, "own": own}.items():
        n, n_chunks, size, _ = query.shape
        check_mask(name, mask, (n, -1 if n_chunks == 1 else n_chunks, size, key.shape[2]))
    flat_query, flat_key = query.flatten(0, 1), key.flatten(0, 1).transpose(1, 2)  # (N C, w, D), (N C, D, m)
    unused = flat_query.new_zeros(())
    logits = torch.baddbmm(unused, flat_query, flat_key, beta=0, alpha=1 / math.sqrt(query.shape[-1]))
    logits = logits.view(*query.shape[:3], key.shape[2])
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    lowest = logits.new_tensor(torch.finfo(logits.dtype).min)
    return torch.where(visible, logits, torch.where(own, SELF_LOGIT, lowest))


def _check(query: Tensor, key: Tensor, value: Tensor, bucket: Tensor, window: int) -> None:
    forms = "key: N L+ D; query: N L D; value: floating-point N L D; bucket: int64 N R L"
    check_operands(forms, key, query, value, bucket)
    check_sizes(window=window)
    check_range("bucket", bucket, 0)


def _attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    order: Tensor,
    place: Tensor,
    window: int,
    with_previous: Callable[[Tensor], Tensor],
    visible: Tensor,
    own: Tensor,
) -> Tensor:
    """sum_r softmax_r(log mass_r) softmax(logits_r) value_r, (N, L, D); with_previous joins each chunk to another."""
    (n, n_rounds, _), (length, width) = order.shape, value.shape[1:]
    rows = order.clamp_max(length - 1).flatten(1)  # (N, R C w)

    def chunks(x: Tensor) -> Tensor:
        return split(take_rows(x, rows), window)  # (N, R C, w, D)

    logits = chunk_logits(chunks(query), with_previous(chunks(key)), visible, own)  # (N, R C, w, 2 w)
    weights = torch.softmax(logits, dim=-1)
    attended = weights.to(value.dtype) @ with_previous(chunks(value))
    out = take_rows(attended.flatten(1, 2), place)  # (N, R L, D)
    if n_rounds == 1:
        return out
    peak, at = logits.max(dim=-1, keepdim=True)
    log_mass = peak - weights.gather(-1, at).log()  # (N, R C, w, 1), the logsumexp without a second exponential
    log_mass = log_mass.flatten(1).gather(1, place).view(n, n_rounds, length)
    portion = torch.softmax(log_mass, dim=1).unsqueeze(-1).to(out.dtype)  # (N, R, L, 1)
    return torch.sum(out.view(n, n_rounds, length, width) * portion, dim=1)


def _by_rows(attend: Callable[..., Tensor], bucket: Tensor, window: int, *operands: Tensor) -> Tensor:
    """attend(*operands, bucket), with a few sequences at a time on a CPU; every operand has a row for each."""
    n, n_rounds, length = bucket.shape
    rows = max(BLOCK_LOGITS // (n_rounds * length * 2 * window), 1)
    if n <= rows or bucket.device.type != "cpu":
        return attend(*operands, bucket)
    parts = zip(*(torch.split(x, rows) for x in (*operands, bucket)), strict=True)
    return torch.cat([attend(*part) for part in parts])


def _sorted(bucket: Tensor, window: int) -> tuple[Tensor, Tensor]:
    """Sort each round of bucket (N, R, L): positions (N, R, C * w), and each one's place (N, R * L) in R * C * w."""
    n, n_rounds, length = bucket.shape
    spare = -length % window
    order = bucket.sort(dim=2, stable=True).indices
    starts = torch.arange(n_rounds, device=bucket.device).unsqueeze(1) * (length + spare)
    place = (order.argsort(dim=2) + starts).flatten(1)
    beyond = torch.arange(length, length + spare, device=bucket.device).expand(n, n_rounds, spare)
    return torch.cat([order, beyond], dim=2), place  # beyond fills up the last chunk


def bucket_attention(query: Tensor, key: Tensor, value: Tensor, bucket: Tensor, *, window: int) -> Tensor:
    """Attention to the earlier members of a position's bucket, at most `window` ranks back, itself last.

    Strictly causal, O(L R w D). query, key, value and the result are (N, L, D), bucket (N, R, L) int64 is at least 0,
    window is w. A bucket keeps the order of positions. Padding is kept out by a bucket number that no valid position
    has.
    """
    _check(query, key, value, bucket, window)
    window = min(window, bucket.shape[2])
    return _by_rows(partial(_bucket_attention, window), bucket, window, query, key, value)


def _bucket_attention(window: int, query: Tensor, key: Tensor, value: Tensor, bucket: Tensor) -> Tensor:
    length = bucket.shape[2]
    order, place = _sorted(bucket, window)

    def with_previous(x: Tensor) -> Tensor:
        return torch.cat([x.roll(1, dims=1), x], dim=2)  # (N, R C, 2 w, ...)

    label = bucket.gather(2, order.clamp_max(length - 1)).masked_fill(order >= length, -1)
    label = split(label.flatten(1), window)  # (N, R C, w)
    before = label.roll(1, dims=1)
    before[:, :: order.shape[2] // window] = -2  # a round's first chunk has none before it
    step = torch.arange(2 * window, device=bucket.device)
    back = step[window:].unsqueeze(1) - step  # (w, 2 w) ranks from query back to key
    same = label.unsqueeze(-1) == torch.cat([before, label], dim=2).unsqueeze(-2)  # (N, R C, w, 2 w)
    visible = same & (back > 0) & (back <= window)
    return _attend(query, key, value, order, place, window, with_previous, visible, own=back == 0)


def bucket_attention_last(
    query: Tensor, key: Tensor, value: Tensor, bucket: Tensor, final: Tensor, *, window: int
) -> Tensor:
    """bucket_attention at one position of each row, O(L D): query (N, D), final (N,) its position -> (N, D)."""
    _check(key, key, value, bucket, window)
    check_operands("key: N L D; query: N D; final: int64 N", key, query, final)
    check_rows(final, key.shape[1], "final")
    final = final.view(-1, 1, 1)
    position = torch.arange(bucket.shape[2], device=bucket.device)
    own_bucket = bucket.gather(2, final.expand(-1, bucket.shape[1], 1))  # (N, R, 1)
    member = (bucket == own_bucket) & (position <= final)  # (N, R, L)
    back = member.sum(dim=2, keepdim=True) - member.cumsum(dim=2)  # ranks back from the final position
    visible, own = member & (back <= window) & (position < final), position == final
    logits = chunk_logits(query[:, None, None], key.unsqueeze(1), visible.unsqueeze(2), own.unsqueeze(2)).squeeze(2)
    weights = torch.softmax(logits.flatten(1), dim=1).view(logits.shape).sum(dim=1, keepdim=True)  # (N, 1, L)
    return (weights.to(value.dtype) @ value).squeeze(1)


def chunked_round_attention(
    query: Tensor, key: Tensor, value: Tensor, bucket: Tensor, lengths: Tensor, *, window: int
) -> Tensor:
    """Reformer's published rule: each chunk and the one before, across buckets, keys at positions up to the query's.

    The rounds of one sequence follow each other and the chunks form a ring: the first chunk of a round looks back to
    the last one of the round before, the first of all to the last of all. Chunks of padding are left out of the ring,
    so that padding changes nothing. Sees the future: where the chunks begin depends on all positions.

    query, key, value and the result are (N, L, D); bucket (N, R, L) int64, padding in the last one; lengths (N,) counts
    the valid positions; window is w.
    """
    _check(query, key, value, bucket, window)
    check_operands("bucket: int64 N R L; lengths: int64 N", bucket, lengths)
    check_rows(lengths, bucket.shape[2] + 1, "lengths")
    is_padding = torch.arange(bucket.shape[2], device=lengths.device) >= lengths.view(-1, 1, 1)  # (N, 1, L)
    check_range("bucket of padding minus the last bucket", torch.where(is_padding, bucket - bucket.amax(2, True), 0), 0)
    window = min(window, bucket.shape[2])
    return _by_rows(partial(_chunked_round_attention, window), bucket, window, lengths, query, key, value)


def _chunked_round_attention(
    window: int, lengths: Tensor, query: Tensor, key: Tensor, value: Tensor, bucket: Tensor
) -> Tensor:
    order, place = _sorted(bucket, window)
    n_rounds, n_chunks = bucket.shape[1], order.shape[2] // window
    # The chunk before each chunk, (N, R C): the one before it, or for a round's first the last valid one before.
    last = ((lengths - 1).clamp_min(0) // window).unsqueeze(1)  # (N, 1)
    chunk = torch.arange(n_rounds * n_chunks, device=lengths.device)
    round_before = (chunk // n_chunks - 1) % n_rounds
    previous = torch.where(chunk % n_chunks == 0, round_before * n_chunks + last, chunk - 1)

    def with_previous(x: Tensor) -> Tensor:
        return torch.cat([take_rows(x, previous), x], dim=2)  # (N, R C, 2 w, ...)

    position = split(order.flatten(1), window)  # (N, R C, w)
    query_at, key_at = position.unsqueeze(-1), with_previous(position).unsqueeze(-2)
    visible, own = key_at < query_at, key_at == query_at
    return _attend(query, key, value, order, place, window, with_previous, visible, own)
