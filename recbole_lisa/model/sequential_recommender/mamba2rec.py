"""Mamba-2's layer (Dao and Gu, 2024) as a recommender, like Mamba4Rec with Mamba-1's."""

from recbole_lisa.attention import SelectiveSSM
from recbole_lisa.model.attentive_recommender import AttentiveRecommender


class Mamba2Rec(AttentiveRecommender):
    """Mamba-2's layer in the same encoder, in plain torch."""

    mechanism = SelectiveSSM
