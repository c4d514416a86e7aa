"""LRURec (Yue et al., 2024)."""

from recbole_lisa.attention import LinearRecurrentUnit
from recbole_lisa.model.attentive_recommender import AttentiveRecommender


class LRURec(AttentiveRecommender):
    """The linear recurrent unit in the same encoder."""

    mechanism = LinearRecurrentUnit
