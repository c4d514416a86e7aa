"""LISA-Soft (WWW 2021)."""

from recbole_lisa.model.lisa_recommender import LISARecommender


class LISASoft(LISARecommender):
    """LISA-Soft: keys are soft assignments; targets are scored by their own embeddings (Section 3.4)."""

    hard = False
