"""Linformer (Wang et al., 2020)."""

from recbole_lisa import attention
from recbole_lisa.model.attentive_recommender import AttentiveRecommender


class Linformer(AttentiveRecommender):
    """Linformer's attention in the same encoder: the only bidirectional mechanism of the paper's comparison."""

    mechanism = attention.Linformer
    reads_any_length = False
