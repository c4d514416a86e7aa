"""LISA-Soft (WWW 2021)."""

from typing import Any

from recbole_lisa.model.lisa_recommender import LISARecommender


class LISASoft(LISARecommender):
    """LISA-Soft: keys are soft assignments; targets are scored by their own embeddings (Section 3.4).

    The residual stream carries the sum of an item's codewords as published, or with item_input: embeddings, its
    embedding; attention reads its codes in both cases.
    """

    hard = False

    def __init__(self, config: Any, dataset: Any) -> None:
        super().__init__(config, dataset)
        self.item_input: str = config["item_input"]
