"""Transformer with causal linear attention."""

from recbole_lisa.attention import LinearAttention
from recbole_lisa.model.attentive_recommender import AttentiveRecommender


class LinearTransformer(AttentiveRecommender):
    """Causal linear attention with elu + 1 features in the same encoder (Katharopoulos et al., 2020)."""

    mechanism = LinearAttention
