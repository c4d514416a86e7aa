"""Reformer (Kitaev et al., 2020)."""

from recbole_lisa.attention import ReformerAttention
from recbole_lisa.model.attentive_recommender import AttentiveRecommender


class Reformer(AttentiveRecommender):
    """Reformer's hashed attention in the same encoder, without reversible layers; LSH-1 and LSH-4 of the paper."""

    mechanism = ReformerAttention
