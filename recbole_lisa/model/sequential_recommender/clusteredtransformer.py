"""Clustered Transformer (Vyas et al., 2020)."""

from collections.abc import Mapping
from typing import Any

from recbole_lisa.attention import ClusteredAttention
from recbole_lisa.attention.clustered import NO_STRICT_FORM
from recbole_lisa.errors import UsageError
from recbole_lisa.model.attentive_recommender import AttentiveRecommender


class ClusteredTransformer(AttentiveRecommender):
    """Improved clustered attention in the same encoder; causal, but its choice of keys depends on the future."""

    mechanism = ClusteredAttention

    @classmethod
    def check_settings(cls, settings: Mapping[str, Any]) -> None:
        """Refuse causality strict, too, by a UsageError."""
        if settings["causality"] != "published":
            raise UsageError(f"causality is {settings['causality']!r}, but {NO_STRICT_FORM}: leave it 'published'")
        super().check_settings(settings)
