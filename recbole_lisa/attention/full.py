"""Exact softmax attention on torch's fused kernels."""

from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from recbole_lisa.attention.base import Attention, final_positions, take_positions
from recbole_lisa.ops.checks import check_number


class FullAttention(Attention):
    """softmax(Q K^T / sqrt(D / H)) V, then an output projection (LISA, Eq. 1; Vaswani et al. 2017).

    O(L^2 D) time, O(L) memory where the device has a flash kernel. Padding is on the right, so that the causal mask
    alone hides it from every item.

    dropout is the probability on the attention weights; above 0 torch does not use the flash kernel on the CPU.
    bidirectional: attend to all items.

    Raises:
        ValueError: as Attention, or dropout is outside [0, 1).
    """

    def __init__(
        self, *, hidden_size: int, n_heads: int = 1, dropout: float = 0.0, bidirectional: bool = False
    ) -> None:
        super().__init__(hidden_size)
        if n_heads < 1 or hidden_size % n_heads:
            raise ValueError(f"n_heads must divide hidden_size {hidden_size}, got {n_heads}")
        check_number("dropout", dropout, 0, 1)
        self.n_heads = n_heads
        self.dropout = dropout
        self.is_causal = not bidirectional
        self.query, self.key, self.value, self.output = (nn.Linear(hidden_size, hidden_size) for _ in range(4))
        for layer in (self.query, self.key, self.value, self.output):
            nn.init.xavier_uniform_(layer.weight)
            nn.init.zeros_(layer.bias)

    def _heads(self, x: Tensor) -> Tensor:
        n, length, width = x.shape
        return x.view(n, length, self.n_heads, width // self.n_heads).transpose(1, 2)  # (N, H, L, D / H)

    def _attend(self, query: Tensor, x: Tensor, mask: Tensor | None, *, is_causal: bool) -> Tensor:
        q, k, v = (self._heads(y) for y in (self.query(query), self.key(x), self.value(x)))  # (N, H, L, D / H)
        rate = self.dropout if self.training else 0.0
        attended = scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=is_causal, dropout_p=rate)
        return self.project(attended.transpose(1, 2).flatten(2))

    def everywhere(self, x: Tensor, valid: Tensor) -> Tensor:
        """Attend at every position: x (N, L, D), valid (N, L) -> (N, L, D)."""
        mask = None if self.is_causal else self._key_mask(valid)
        return self._attend(x, x, mask, is_causal=self.is_causal)

    def at_last(self, x: Tensor, valid: Tensor) -> Tensor:
        """Attend at the final item only, O(L D): x (N, L, D), valid (N, L) -> (N, D)."""
        query = take_positions(x, final_positions(valid)).unsqueeze(1)  # (N, 1, D)
        return self._attend(query, x, self._key_mask(valid), is_causal=False).squeeze(1)

    @staticmethod
    def _key_mask(valid: Tensor) -> Tensor:
        """(N, 1, 1, L) keys of items; a row of padding keeps its first key, so that its softmax is defined."""
        keys = valid.clone()
        keys[:, 0] = True
        return keys[:, None, None, :]
