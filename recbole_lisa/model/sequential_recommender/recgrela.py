"""RecGRELA (arXiv 2506.13315), made causal."""

from typing import Any

from recbole_lisa.attention import GatedRotaryAttention
from recbole_lisa.model.attentive_recommender import AttentiveRecommender


class RecGRELA(AttentiveRecommender):
    """Gated rotary linear attention in the same encoder."""

    def build_layer(self, config: Any, index: int) -> GatedRotaryAttention:
        """Rotary linear attention."""
        return GatedRotaryAttention(hidden_size=config["hidden_size"], n_heads=config["n_heads"])
