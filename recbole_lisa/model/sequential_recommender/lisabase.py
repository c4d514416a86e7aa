"""LISA-Base (WWW 2021)."""

from recbole_lisa.model.lisa_recommender import LISARecommender


class LISABase(LISARecommender):
    """LISA-Base: hard codes; targets are scored by their reconstruction from the same codebooks (Section 3.3)."""
