"""Linformer: keys and values projected along the length (Wang et al., 2020)."""

import math

import torch
from torch import Tensor, nn

from recbole_lisa.attention.base import Attention, final_positions, take_positions, zero_padding
from recbole_lisa.ops.checks import check_sizes


class Linformer(Attention):
    """softmax(Q (E^T K)^T / sqrt(D)) F^T V with E, F (L_max, k): O(L k D).

    Bidirectional: the projection mixes all positions before a mask can be applied, and no causal form is known. Keys
    and values at padding are set to 0 before the projection, so a padded sequence gives the same output as the shorter
    one, for which E and F have their first rows only. max_length is L_max: longer ones are refused; n_projected is k.
    """

    is_causal = False

    def __init__(self, *, hidden_size: int, max_length: int, n_projected: int = 128) -> None:
        super().__init__(hidden_size)
        check_sizes(max_length=max_length, n_projected=n_projected)
        self.longest = max_length
        self.query, self.key, self.value = (nn.Linear(hidden_size, hidden_size, bias=False) for _ in range(3))
        self.output = nn.Linear(hidden_size, hidden_size)
        bound = 1 / math.sqrt(n_projected)
        self.key_projection, self.value_projection = (
            nn.Parameter(torch.empty(max_length, n_projected).uniform_(-bound, bound)) for _ in range(2)
        )

    def everywhere(self, x: Tensor, valid: Tensor) -> Tensor:
        """Attend at every position: x (N, L, D), valid (N, L) -> (N, L, D)."""
        return self._attend(self.query(x), x, valid)

    def at_last(self, x: Tensor, valid: Tensor) -> Tensor:
        """Attend at the final item only: x (N, L, D), valid (N, L) -> (N, D)."""
        query = self.query(take_positions(x, final_positions(valid))).unsqueeze(1)  # (N, 1, D)
        return self._attend(query, x, valid).squeeze(1)

    def _attend(self, query: Tensor, x: Tensor, valid: Tensor) -> Tensor:
        length = x.shape[1]
        key = self.key_projection[:length].t() @ zero_padding(self.key(x), valid)  # (N, k, D)
        value = self.value_projection[:length].t() @ zero_padding(self.value(x), valid)  # (N, k, D)
        weights = torch.softmax(query @ key.transpose(1, 2) / math.sqrt(x.shape[-1]), dim=-1)  # (N, L, k)
        return self.project(weights @ value)
