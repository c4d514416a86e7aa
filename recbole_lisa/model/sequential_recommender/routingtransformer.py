"""Routing Transformer (Roy et al., 2021)."""

from typing import Any

from recbole.data.interaction import Interaction
from torch import Tensor

from recbole_lisa.attention import RoutingAttention
from recbole_lisa.layers.sequence_encoder import ItemView
from recbole_lisa.model.attentive_recommender import AttentiveRecommender
from recbole_lisa.model.batch_share import positions_share


class RoutingTransformer(AttentiveRecommender):
    """Attention inside k-means clusters in the same encoder; the distance to the centroids joins the loss."""

    def __init__(self, config: Any, dataset: Any) -> None:
        super().__init__(config, dataset)
        self.commitment_weight: float = config["commitment_weight"]

    def build_layer(self, config: Any, index: int) -> RoutingAttention:
        """Routed attention, with the number of clusters that the longest window asks for."""
        return RoutingAttention(
            hidden_size=config["hidden_size"],
            max_length=config["MAX_ITEM_LIST_LENGTH"],
            window_size=config["window_size"],
            causality=config["causality"],
            centroid_decay=config["centroid_decay"],
            centroid_seed=config["centroid_seed"] + index,
        )

    def share(self, batch: Interaction, number: int, size: int) -> tuple[Interaction, tuple[float, ...]]:
        """See AttentiveRecommender; the commitment is a mean over all real positions, supervised or not."""
        rows, weights = super().share(batch, number, size)
        if not self.commitment_weight:
            return rows, weights
        return rows, (*weights, positions_share(rows, batch, self.fields) if weights[0] else 0.0)

    def regulariser(self, x: Tensor, view: ItemView, inputs: list[Tensor], valid: Tensor) -> Tensor | None:
        """commitment_weight times the sum of the layers' commitment losses; None at weight 0."""
        if not self.commitment_weight:
            return None
        losses = [layer.commitment(h, valid) for layer, h in zip(self.attentions, inputs, strict=True)]
        return self.commitment_weight * sum(losses)
