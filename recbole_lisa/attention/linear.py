"""Causal linear attention with elu + 1 features: linear time, a state of constant size."""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from recbole_lisa.attention.base import Attention, Input, empty_state, final_positions, take_positions, zero_padding
from recbole_lisa.ops.linear_attention import linear_attention
from recbole_lisa.ops.quantize import Quantized


class LinearState(NamedTuple):
    """A whole history at constant size: sum of phi(k) v^T (N, D, D) and of phi(k) (N, D)."""

    products: Tensor
    mass: Tensor


def positive_features(x: Tensor) -> Tensor:
    """phi(x) = elu(x) + 1, any shape; at least float32, so that long sums stay accurate."""
    return nn.functional.elu(x.to(torch.promote_types(x.dtype, torch.float32))) + 1


class LinearAttention(Attention):
    """out_i = phi(q_i)^T S_i / phi(q_i)^T z_i with prefix sums S and z (Katharopoulos et al., 2020).

    O(L D^2) time, then an output projection, as in full attention.
    """

    has_state = True

    def __init__(self, *, hidden_size: int) -> None:
        super().__init__(hidden_size)
        self.query, self.key, self.value, self.output = (nn.Linear(hidden_size, hidden_size) for _ in range(4))
        for layer in (self.query, self.key, self.value, self.output):
            nn.init.xavier_uniform_(layer.weight)
            nn.init.zeros_(layer.bias)

    def everywhere(self, x: Tensor, valid: Tensor) -> Tensor:
        """Attend at every position: x (N, L, D), valid (N, L) -> (N, L, D)."""
        query = positive_features(self.query(x))
        key = positive_features(self.key(x)) * valid.unsqueeze(-1)
        with torch.autocast(x.device.type, enabled=False):
            attended = linear_attention(query, key, self.value(x).to(query.dtype))
        return self.project(attended.to(x.dtype))

    def at_last(self, x: Tensor, valid: Tensor) -> Tensor:
        """Attend at the final item only, O(L D): x (N, L, D), valid (N, L) -> (N, D)."""
        query = positive_features(self.query(take_positions(x, final_positions(valid))))  # (N, D)
        key = positive_features(self.key(x)) * valid.unsqueeze(-1)  # (N, L, D)
        weights = (key @ query.unsqueeze(-1)).squeeze(-1)  # (N, L)
        total = weights.sum(dim=1, keepdim=True).clamp_min(torch.finfo(weights.dtype).tiny)
        attended = ((weights / total).unsqueeze(1) @ self.value(x).to(weights.dtype)).squeeze(1)
        return self.project(attended.to(x.dtype))

    def init_state(self, n: int) -> LinearState:
        """The empty history of n users."""
        weight = self.query.weight
        return LinearState(empty_state(weight, n, *weight.shape), empty_state(weight, n, weight.shape[0]))

    def step(
        self, state: LinearState, x: Tensor | Quantized, time_gap: Tensor | None = None, vectors: Tensor | None = None
    ) -> tuple[Tensor, LinearState]:
        """Append one vector to each user's history in O(D^2); see Attention."""
        self.check_step(state, x, Tensor)
        assert isinstance(x, Tensor)
        query, key = positive_features(self.query(x)), positive_features(self.key(x))
        products = state.products + key.unsqueeze(-1) * self.value(x).unsqueeze(1)
        state = LinearState(products, state.mass + key)
        query = query.to(products.dtype)
        attended = (query.unsqueeze(1) @ products).squeeze(1) / (query * state.mass).sum(dim=-1, keepdim=True)
        return self.project(attended.to(x.dtype)), state

    def state_of(self, x: Input, valid: Tensor, time_gaps: Tensor | None = None) -> LinearState:
        """The state after whole sequences; see Attention."""
        x = zero_padding(self.checked_vectors(x, valid), valid)
        key = (positive_features(self.key(x)) * valid.unsqueeze(-1)).double()  # (N, L, D)
        return LinearState(key.transpose(1, 2) @ self.value(x).double(), key.sum(dim=1))
