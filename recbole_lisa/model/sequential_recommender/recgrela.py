"""RecGRELA (arXiv 2506.13315), made causal."""

from recbole_lisa.attention import GatedRotaryAttention
from recbole_lisa.model.attentive_recommender import AttentiveRecommender


class RecGRELA(AttentiveRecommender):
    """Gated rotary linear attention in the same encoder."""

    mechanism = GatedRotaryAttention
