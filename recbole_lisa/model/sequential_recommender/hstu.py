"""HSTU (Zhai et al., 2024)."""

from typing import Any

from recbole_lisa.attention import HSTUAttention
from recbole_lisa.model.attentive_recommender import AttentiveRecommender


class HSTU(AttentiveRecommender):
    """HSTU's pointwise attention without its bias by time, in the same encoder."""

    def build_layer(self, config: Any, index: int) -> HSTUAttention:
        """Pointwise attention."""
        return HSTUAttention(hidden_size=self.hidden_size, n_heads=config["n_heads"], max_length=self.max_seq_length)
