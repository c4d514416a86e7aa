"""Routing Transformer (Roy et al., 2021)."""

from typing import Any

import torch
from torch import Tensor

from recbole_lisa.attention import RoutingAttention
from recbole_lisa.layers.sequence_encoder import ItemView
from recbole_lisa.model.attentive_recommender import AttentiveRecommender


class RoutingTransformer(AttentiveRecommender):
    """Attention inside k-means clusters in the same encoder; the distance to the centroids joins the loss."""

    mechanism = RoutingAttention

    def __init__(self, config: Any, dataset: Any) -> None:
        super().__init__(config, dataset)
        self.commitment_weight: float = config["commitment_weight"]

    def regulariser(self, x: Tensor, view: ItemView, inputs: list[Tensor], valid: Tensor) -> Tensor | None:
        """commitment_weight times the sum of the layers' commitment losses; None at weight 0."""
        if not self.commitment_weight:
            return None
        layers = zip(self.encoder.layers(), inputs, strict=True)
        losses = [layer.commitment(h, valid) for layer, h in layers if isinstance(layer, RoutingAttention)]
        return self.commitment_weight * torch.stack(losses).sum()
