"""Reformer: attention among positions that a random rotation sends to the same bucket (Kitaev et al., 2020)."""

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from recbole_lisa.attention.base import Attention, final_positions, project_exactly, take_positions
from recbole_lisa.ops.checks import check_sizes
from recbole_lisa.ops.rotation_hashing import rotation_buckets
from recbole_lisa.ops.sorted_window import bucket_attention, bucket_attention_last, chunked_round_attention


class ReformerAttention(Attention):
    r"""Locality-sensitive hashing (LSH) attention with shared queries and keys.

        bucket_r(x) = argmax [q R_r ; -q R_r],   q = W_qk x,   k = q / |q|
        out = sum_r softmax_r(log_mass_r) softmax(q k^T / sqrt(D) over the positions that round r allows) v

    A position sees itself only if it sees no other position. Pairs that meet in several rounds count several times, as
    in public implementations; the Reformer paper divides by the count. The number of buckets is fixed from the longest
    sequence, and the rotations are drawn once from a seed, so that a prefix gets the same hashes as the whole sequence.

    O(L R D (w + L_max / 2 w)) time and a sort: the second summand is the hashing. It is linear in L for a given L_max,
    and quadratic if L_max grows with L and w does not. Memory is always linear in L: rotated vectors exist for one
    block of positions at a time.

    Args:
        max_length: L_max, length that fixes the number of buckets; longer sequences work, too.
        bucket_size: w, positions of a chunk and expected number in a bucket.
        n_hashes: R, rounds of hashing.
        causality: strict: a query sees at most w earlier members of its own bucket, which no later position can
            change; published: chunks of the sorted sequence, whose borders depend on the future.
        hash_seed: seed of the rotations.
    """

    def __init__(
        self,
        *,
        hidden_size: int,
        max_length: int,
        bucket_size: int = 64,
        n_hashes: int = 1,
        causality: str = "strict",
        hash_seed: int = 0,
    ) -> None:
        super().__init__(hidden_size)
        check_sizes(max_length=max_length, bucket_size=bucket_size, n_hashes=n_hashes)
        self.sees_future = self.is_published(causality)
        self.bucket_size = bucket_size
        self.query_key, self.value = (nn.Linear(hidden_size, hidden_size, bias=False) for _ in range(2))
        self.output = nn.Linear(hidden_size, hidden_size)
        n_pairs = math.ceil(max_length / (2 * bucket_size))
        generator = torch.Generator().manual_seed(hash_seed)
        self.rotations = nn.Buffer(torch.randn(n_hashes, hidden_size, n_pairs, generator=generator))

    def everywhere(self, x: Tensor, valid: Tensor) -> Tensor:
        """Attend at every position: x (N, L, D), valid (N, L) -> (N, L, D)."""
        query, value = project_exactly(self.query_key, x), self.value(x)
        key, bucket = normalize(query, dim=-1), self._buckets(query, valid)  # (N, L, D), (N, R, L)
        operands = query, key, value, bucket
        if self.sees_future:
            return self.project(chunked_round_attention(*operands, valid.sum(dim=1), window=self.bucket_size))
        return self.project(bucket_attention(*operands, window=self.bucket_size))

    def at_last(self, x: Tensor, valid: Tensor) -> Tensor:
        """Attend at the final item only: x (N, L, D), valid (N, L) -> (N, D); O(L D) and hashing if strict."""
        if self.sees_future:
            return super().at_last(x, valid)
        query, final = project_exactly(self.query_key, x), final_positions(valid)
        operands = normalize(query, dim=-1), self.value(x), self._buckets(query, valid), final
        return self.project(bucket_attention_last(take_positions(query, final), *operands, window=self.bucket_size))

    def _buckets(self, query: Tensor, valid: Tensor) -> Tensor:
        """(N, R, L) bucket numbers; padding has the number after the last bucket's."""
        bucket = rotation_buckets(query, self.rotations)
        return bucket.masked_fill(~valid.unsqueeze(1), 2 * self.rotations.shape[-1])
