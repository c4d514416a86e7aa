"""Reformer (Kitaev et al., 2020)."""

from typing import Any

from recbole_lisa.attention import ReformerAttention
from recbole_lisa.model.attentive_recommender import AttentiveRecommender


class Reformer(AttentiveRecommender):
    """Reformer's hashed attention in the same encoder, without reversible layers; LSH-1 and LSH-4 of the paper."""

    def build_layer(self, config: Any, index: int) -> ReformerAttention:
        """Hashed attention, with the number of buckets for the longest window."""
        return ReformerAttention(
            hidden_size=config["hidden_size"],
            max_length=config["MAX_ITEM_LIST_LENGTH"],
            bucket_size=config["bucket_size"],
            n_hashes=config["n_hashes"],
            causality=config["causality"],
            hash_seed=config["hash_seed"] + index,
        )
