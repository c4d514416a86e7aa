"""Sinkhorn Transformer (Tay et al., 2020)."""

from recbole_lisa.attention import SinkhornAttention
from recbole_lisa.model.attentive_recommender import AttentiveRecommender


class SinkhornTransformer(AttentiveRecommender):
    """Attention to a position's own bucket and to sorted buckets of the past in the same encoder."""

    mechanism = SinkhornAttention
    reads_any_length = False
