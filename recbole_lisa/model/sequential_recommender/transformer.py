"""The vanilla Transformer of the comparison."""

from typing import Any

from recbole_lisa.attention import FullAttention
from recbole_lisa.model.attentive_recommender import AttentiveRecommender


class Transformer(AttentiveRecommender):
    """Exact softmax attention on torch's fused kernels in the same encoder (SASRec, post-norm)."""

    def build_layer(self, config: Any, index: int) -> FullAttention:
        """Full attention."""
        return FullAttention(
            hidden_size=config["hidden_size"],
            n_heads=config["n_heads"],
            dropout=config["attn_dropout_prob"],
            bidirectional=config["bidirectional"],
        )
