"""Sinkhorn Transformer (Tay et al., 2020)."""

from typing import Any

from recbole_lisa.attention import SinkhornAttention
from recbole_lisa.model.attentive_recommender import AttentiveRecommender


class SinkhornTransformer(AttentiveRecommender):
    """Attention to a position's own bucket and to sorted buckets of the past in the same encoder."""

    reads_any_length = False

    def build_layer(self, config: Any, index: int) -> SinkhornAttention:
        """Sinkhorn attention, with a column of the sort net for each bucket of the longest window."""
        return SinkhornAttention(
            hidden_size=config["hidden_size"],
            max_length=config["MAX_ITEM_LIST_LENGTH"],
            bucket_size=config["bucket_size"],
            n_top_buckets=config["n_top_buckets"],
            temperature=config["sort_temperature"],
        )
