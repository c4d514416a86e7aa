"""Sparse Sinkhorn attention: local attention, and one or more sorted buckets of the past (Tay et al., 2020)."""

import math

import torch
from torch import Tensor, nn

from recbole_lisa.attention.base import Attention, final_positions, project_exactly, take_positions
from recbole_lisa.ops.bucket_sorting import choose_buckets, sorted_bucket_attention
from recbole_lisa.ops.checks import MIN_TEMPERATURE, check_number, check_sizes
from recbole_lisa.ops.recurrences import sums_before
from recbole_lisa.ops.sorted_window import take_rows


class SinkhornAttention(Attention):
    r"""Causal attention to a position's own bucket of b positions and to T buckets sorted to it: O(L (T + 1) b D).

        x_u = [mean of k up to the first position of bucket u ; k there]
        p_u = softmax(LeakyReLU(x_u W) / temperature) over T null columns and the buckets before u
        out = softmax(q [p k_past ; k_own]^T / sqrt(D)) [p v_past ; v_own]

    The T most likely columns are taken; keys and values of a taken bucket are scaled by its probability. A null column
    is b copies of one learned key and value. As in the public implementation, there is no Sinkhorn balancing, which
    would use the future. Unlike there, the single head is not rotated by b - 1 positions, which would hide the older
    half of the history from the last position.

    Strictly causal: the choice for a bucket depends on its first position and those before it. W has a column for
    each bucket, so the number of buckets is fixed by max_length: longer sequences are refused. The last bucket may be
    partly filled. bucket_size is b, n_top_buckets is T.

    Raises:
        ValueError: as Attention, or a temperature below MIN_TEMPERATURE.
    """

    def __init__(
        self,
        *,
        hidden_size: int,
        max_length: int,
        bucket_size: int = 32,
        n_top_buckets: int = 1,
        temperature: float = 0.75,
    ) -> None:
        super().__init__(hidden_size)
        check_sizes(max_length=max_length, bucket_size=bucket_size, n_top_buckets=n_top_buckets)
        check_number("temperature", temperature, MIN_TEMPERATURE)
        self.longest = max_length
        self.bucket_size = bucket_size
        self.n_top_buckets = n_top_buckets
        self.temperature = temperature
        self.query, self.key, self.value = (nn.Linear(hidden_size, hidden_size, bias=False) for _ in range(3))
        self.output = nn.Linear(hidden_size, hidden_size)
        self.null_key, self.null_value = (nn.Parameter(torch.randn(hidden_size)) for _ in range(2))
        n_columns = n_top_buckets + math.ceil(max_length / bucket_size)
        self.sort_weight = nn.Parameter(torch.randn(2 * hidden_size, n_columns))

    def everywhere(self, x: Tensor, valid: Tensor) -> Tensor:
        """Attend at every position: x (N, L, D), valid (N, L) -> (N, L, D)."""
        length, size = x.shape[1], min(self.bucket_size, x.shape[1])
        buckets = nn.functional.pad(x, (0, 0, 0, -length % size))
        buckets = buckets.view(x.shape[0], -1, size, x.shape[-1])  # (N, U, b, D)
        own_bucket = torch.arange(buckets.shape[1], device=x.device)
        exact, count = buckets.to(self.sort_weight.dtype), own_bucket * self.bucket_size + 1  # (N, U, b, D), (U,)
        mean = (sums_before(exact.sum(dim=2)) + exact[:, :, 0]) / count.unsqueeze(-1)  # up to each first position
        column, probability = self._choose(buckets[:, :, 0], mean, own_bucket)  # (N, U, T)
        key, value = self.key(buckets), self.value(buckets)
        past = self._past(key, self.null_key, column), self._past(value, self.null_value, column)
        query = self.query(buckets) / math.sqrt(x.shape[-1])
        visible = torch.ones(size, size, dtype=torch.bool, device=x.device).tril()
        copies = 1 if len(own_bucket) > 1 else self.bucket_size
        attended = sorted_bucket_attention(query, key, value, *past, probability, visible, copies=copies)
        return self.project(attended.flatten(1, 2)[:, :length])  # of (N, U, b, D)

    def at_last(self, x: Tensor, valid: Tensor) -> Tensor:
        """Attend at the final item only: x (N, L, D), valid (N, L) -> (N, D); O(L D + T b D^2)."""
        if x.shape[1] <= self.bucket_size:
            return super().at_last(x, valid)
        final = final_positions(valid)
        own_bucket = (final // self.bucket_size).unsqueeze(1)  # (N, 1)
        first = own_bucket * self.bucket_size  # (N, 1)
        inside = torch.arange(self.bucket_size, device=x.device)  # (b,)
        seen = torch.arange(x.shape[1], device=x.device) <= first  # (N, L)
        mean = (seen.to(self.sort_weight.dtype).unsqueeze(1) @ x.to(self.sort_weight.dtype)) / (first.unsqueeze(-1) + 1)
        column, probability = self._choose(take_rows(x, first), mean, own_bucket)  # (N, 1, T)
        bucket = torch.cat([(column.squeeze(1) - self.n_top_buckets).clamp_min(0), own_bucket], dim=1)  # (N, T + 1)
        position = bucket.unsqueeze(-1) * self.bucket_size + inside  # (N, T + 1, b)
        rows = take_rows(x, position.flatten(1).clamp_max(x.shape[1] - 1))
        rows = rows.view(*position.shape, x.shape[-1])  # (N, T + 1, b, D)
        is_null = (column.squeeze(1) < self.n_top_buckets)[:, :, None, None]  # (N, T, 1, 1)
        (past_key, key), (past_value, value) = (
            (torch.where(is_null, null.to(every.dtype), every[:, :-1]).flatten(1, 2).unsqueeze(1), every[:, -1:])
            for every, null in ((self.key(rows), self.null_key), (self.value(rows), self.null_value))
        )
        query = self.query(take_positions(x, final)) / math.sqrt(x.shape[-1])  # (N, D)
        visible = (first + inside <= final.unsqueeze(1))[:, None, None]  # (N, 1, 1, b)
        past = past_key, past_value
        attended = sorted_bucket_attention(query[:, None, None], key, value, *past, probability, visible)
        return self.project(attended.flatten(1))  # of (N, 1, 1, D)

    def _choose(self, first: Tensor, mean: Tensor, own_bucket: Tensor) -> tuple[Tensor, Tensor]:
        """The sort net: x at first positions, mean up to there, (N, U, D) each -> columns, probabilities (N, U, T)."""
        keys = torch.cat([project_exactly(self.key, mean), project_exactly(self.key, first)], dim=-1)  # (N, U, 2 D)
        with torch.autocast(first.device.type, enabled=False):
            scores = nn.functional.leaky_relu(keys @ self.sort_weight)
        return choose_buckets(scores, own_bucket, n_top=self.n_top_buckets, temperature=self.temperature)

    def _past(self, every: Tensor, null: Tensor, column: Tensor) -> Tensor:
        """Keys or values of the chosen buckets: (N, U, b, D), (D,), (N, U, T) -> (N, U, T * b, D)."""
        if every.shape[1] == 1:  # nulls only: the b equal copies of one count as one of b times the weight
            return null.to(every.dtype).expand(len(every), 1, self.n_top_buckets, -1)
        nulls = null.to(every.dtype).expand_as(every[:, :1])
        index = (column - self.n_top_buckets + 1).clamp_min(0)
        bucket_rows = take_rows(torch.cat([nulls, every], dim=1), index.flatten(1))  # (N, U T, b, D)
        return bucket_rows.reshape(*column.shape[:2], -1, every.shape[-1])
