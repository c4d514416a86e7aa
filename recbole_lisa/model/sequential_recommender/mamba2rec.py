"""Mamba-2's layer (Dao and Gu, 2024) as a recommender, like Mamba4Rec with Mamba-1's."""

from typing import Any

from recbole_lisa.attention import SelectiveSSM
from recbole_lisa.model.attentive_recommender import AttentiveRecommender


class Mamba2Rec(AttentiveRecommender):
    """Mamba-2's layer in the same encoder, in plain torch."""

    def build_layer(self, config: Any, index: int) -> SelectiveSSM:
        """A recurrence whose decay depends on the input."""
        return SelectiveSSM(hidden_size=self.hidden_size, n_heads=config["n_heads"], state_size=config["state_size"])
