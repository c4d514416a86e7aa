"""LRURec (Yue et al., 2024)."""

from typing import Any

from recbole_lisa.attention import LinearRecurrentUnit
from recbole_lisa.model.attentive_recommender import AttentiveRecommender


class LRURec(AttentiveRecommender):
    """The linear recurrent unit in the same encoder."""

    def build_layer(self, config: Any, index: int) -> LinearRecurrentUnit:
        """A diagonal recurrence."""
        return LinearRecurrentUnit(hidden_size=config["hidden_size"])
