"""HSTU (Zhai et al., 2024)."""

from recbole_lisa.attention import HSTUAttention
from recbole_lisa.model.attentive_recommender import AttentiveRecommender


class HSTU(AttentiveRecommender):
    """HSTU's pointwise attention without its bias by time, in the same encoder."""

    mechanism = HSTUAttention
