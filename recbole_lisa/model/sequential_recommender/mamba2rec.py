"""Mamba-2's layer (Dao and Gu, 2024) as a recommender, like Mamba4Rec with Mamba-1's."""

from typing import Any

from recbole_lisa.attention import SelectiveRecurrence
from recbole_lisa.model.attentive_recommender import AttentiveRecommender


class Mamba2Rec(AttentiveRecommender):
    """Mamba-2's layer in the same encoder, in plain torch."""

    def build_layer(self, config: Any, index: int) -> SelectiveRecurrence:
        """A recurrence whose decay depends on the input."""
        return SelectiveRecurrence(
            hidden_size=config["hidden_size"], n_heads=config["n_heads"], state_size=config["state_size"]
        )
