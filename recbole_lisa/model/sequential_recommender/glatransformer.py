"""Transformer with gated linear attention: optional, needs flash-linear-attention and a CUDA device."""

from collections.abc import Mapping
from typing import Any

from recbole_lisa.attention import GatedLinearAttention, gla
from recbole_lisa.errors import UsageError
from recbole_lisa.model.attentive_recommender import AttentiveRecommender


class GLATransformer(AttentiveRecommender):
    """Gated linear attention in the same encoder (Yang et al., 2024)."""

    mechanism = GatedLinearAttention

    @classmethod
    def check_settings(cls, settings: Mapping[str, Any]) -> None:
        """Refuse by a UsageError also where a requirement of the kernels is missing."""
        missing = gla.missing_requirement() if settings["use_gpu"] else "use_gpu is False"
        if missing is not None:
            raise UsageError(f"GLATransformer cannot run: {missing}; LinearTransformer runs everywhere")
        super().check_settings(settings)
