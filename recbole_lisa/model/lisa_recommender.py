"""What the three LISA models share: the first layer attends with the codes of the items."""

from typing import Any

import torch
from recbole.data.interaction import Interaction
from torch import Tensor

from recbole_lisa.attention import LISAAttention
from recbole_lisa.attention.base import take_valid
from recbole_lisa.attention.codebook import Codebook
from recbole_lisa.layers.sequence_encoder import ItemView
from recbole_lisa.model.quantized_recommender import QuantizedRecommender
from recbole_lisa.ops.codeword_usage import CodewordUsage, codeword_usage


class LISARecommender(QuantizedRecommender):
    """QuantizedRecommender with LISA in every layer; layers above the first quantise their own input.

    With freeze_codebooks item embeddings and the items' codebooks stay as they are: they come from another model.
    """

    def __init__(self, config: Any, dataset: Any) -> None:
        super().__init__(config, dataset)
        self.reconstruction_weight: float = config["reconstruction_weight"]
        self.build_targets(config)
        if config["freeze_codebooks"]:
            for module in (self.item_embedding, *self.codebooks().values()):
                module.requires_grad_(False)

    def build_targets(self, config: Any) -> None:
        """Build what only targets need: nothing, unless they have codebooks of their own."""

    def build_layer(self, config: Any, index: int) -> LISAAttention:
        """LISA with an own quantiser; layer 0's quantises the item table."""
        return LISAAttention(
            hidden_size=config["hidden_size"],
            projection=config["codebook_projection"],
            decay=config["histogram_decay"],
            bidirectional=config["bidirectional"],
            codebook=self.build_codebook(config, config["n_codewords"], hard=self.hard),
        )

    @property
    def codebook(self) -> Codebook:
        """The quantiser of the item table."""
        return self.attentions[0].codebook

    @property
    def quantizing_layers(self) -> list[int]:
        """The layers (from 0) that quantise their own input."""
        return list(range(1, len(self.attentions)))

    @torch.no_grad()
    def layer_usage(self, interaction: Interaction) -> dict[str, tuple[int, CodewordUsage]]:
        """W and how the real positions of a batch use the codewords of every layer above the first."""
        history = self._history(interaction)
        inputs = self.layer_inputs(history, self.item_view())
        found = {}
        for i in self.quantizing_layers:
            _, quantized = self.attentions[i].quantized(take_valid(inputs[i], history.valid).unsqueeze(0))
            n_codewords = self.attentions[i].codebook.n_codewords
            found[f"layer {i + 1}"] = n_codewords, codeword_usage(quantized.codes, n_codewords)
        return found

    def regulariser(self, x: Tensor, view: ItemView, inputs: list[Tensor], valid: Tensor) -> Tensor | None:
        """reconstruction_weight * mean |x - stopgrad(y)|^2 over the batch's distinct items."""
        if not self.reconstruction_weight:
            return None
        return self.reconstruction_weight * (x - view.stream.detach()).square().sum(dim=-1).mean()
