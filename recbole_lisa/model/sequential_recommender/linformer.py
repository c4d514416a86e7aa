"""Linformer (Wang et al., 2020)."""

from typing import Any

from recbole_lisa import attention
from recbole_lisa.model.attentive_recommender import AttentiveRecommender


class Linformer(AttentiveRecommender):
    """Linformer's attention in the same encoder: the only bidirectional mechanism of the paper's comparison."""

    reads_any_length = False

    def __init__(self, config: Any, dataset: Any) -> None:
        super().__init__(config, dataset)
        if not self.item_embedding.weight.is_meta:
            self.logger.warning(
                "Linformer is bidirectional: where every position is trained, each sees the item that it must predict"
            )

    def build_layer(self, config: Any, index: int) -> attention.Linformer:
        """Linformer's attention, built for the longest window."""
        return attention.Linformer(
            hidden_size=config["hidden_size"],
            max_length=config["MAX_ITEM_LIST_LENGTH"],
            n_projected=config["n_projected"],
        )
