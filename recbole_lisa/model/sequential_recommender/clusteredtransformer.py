"""Clustered Transformer (Vyas et al., 2020)."""

from collections.abc import Mapping
from typing import Any

from recbole_lisa.attention import ClusteredAttention
from recbole_lisa.attention.clustered import NO_STRICT_FORM
from recbole_lisa.errors import UsageError
from recbole_lisa.model.attentive_recommender import AttentiveRecommender


class ClusteredTransformer(AttentiveRecommender):
    """Improved clustered attention in the same encoder; causal, but its choice of keys depends on the future."""

    @classmethod
    def check_settings(cls, settings: Mapping[str, Any]) -> None:
        """Refuse causality strict.

        Raises:
            UsageError: causality is strict.
        """
        if settings["causality"] != "published":
            raise UsageError(
                f"causality is {settings['causality']!r}, but {NO_STRICT_FORM}: leave it 'published', or take another "
                "model"
            )

    def build_layer(self, config: Any, index: int) -> ClusteredAttention:
        """Clustered attention; each layer has its own planes."""
        return ClusteredAttention(
            hidden_size=config["hidden_size"],
            n_clusters=config["n_clusters"],
            n_top_keys=config["n_top_keys"],
            n_hash_planes=config["n_hash_planes"],
            n_kmeans_iterations=config["n_kmeans_iterations"],
            hash_seed=config["hash_seed"] + index,
            causality=config["causality"],
            bidirectional=config["bidirectional"],
        )
