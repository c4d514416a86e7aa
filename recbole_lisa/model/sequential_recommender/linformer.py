"""Linformer (Wang et al., 2020)."""

from typing import Any

from recbole_lisa import attention
from recbole_lisa.model.attentive_recommender import AttentiveRecommender


class Linformer(AttentiveRecommender):
    """Linformer's attention in the same encoder: the only bidirectional mechanism of the paper's comparison."""

    mechanism = attention.Linformer
    reads_any_length = False

    def __init__(self, config: Any, dataset: Any) -> None:
        super().__init__(config, dataset)
        if not self.item_embedding.weight.is_meta:
            self.logger.warning("Linformer is bidirectional: where every position is trained, each sees its target")
