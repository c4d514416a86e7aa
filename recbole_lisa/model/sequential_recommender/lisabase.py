"""LISA-Base (WWW 2021)."""

from typing import Any

from recbole_lisa.model.lisa_recommender import LISARecommender


class LISABase(LISARecommender):
    """LISA-Base: hard codes; targets are scored by their reconstruction from the same codebooks (Section 3.3).

    With freeze_codebooks item embeddings and item codebooks stay as they are: they come from another model.
    """

    def __init__(self, config: Any, dataset: Any) -> None:
        super().__init__(config, dataset)
        if config["freeze_codebooks"]:
            self.item_embedding.requires_grad_(False)
            self.codebook.requires_grad_(False)
