"""The common part of the three LISA models: the first layer attends with the codes of the items."""

from typing import Any

import torch
from recbole.data.interaction import Interaction
from torch import Tensor

from recbole_lisa.attention import LISAAttention
from recbole_lisa.attention.base import take_non_padding
from recbole_lisa.attention.codebook import Codebook
from recbole_lisa.distributed.processes import is_first
from recbole_lisa.layers.sequence_encoder import ItemView, Sequences
from recbole_lisa.model.attentive_recommender import AttentiveRecommender
from recbole_lisa.ops.codeword_usage import CodewordUsage, codeword_usage

RESTART_EVERY, SAMPLED = 20, 2**13
"""Batches between two restarts of unused codewords, and input vectors of a layer that count as its use."""


class LISARecommender(AttentiveRecommender):
    """AttentiveRecommender with LISA in every layer; layers above the first quantise their own input.

    With freeze_codebooks, item embeddings and the items' codebooks are not trained; they are those of another model.
    """

    def __init__(self, config: Any, dataset: Any) -> None:
        super().__init__(config, dataset)
        self.reconstruction_weight: float = config["reconstruction_weight"]
        self.init_from_data, self.restart_unused = config["codebook_init"] == "data", config["restart_dead_codewords"]
        counts = torch.zeros((), dtype=torch.int64) if self.init_from_data or self.restart_unused else None
        self.register_buffer("n_batches", counts)
        self.build_targets(config)
        if config["freeze_codebooks"]:
            for module in (self.item_embedding, *self.codebooks().values()):
                module.requires_grad_(False)

    def build_targets(self, config: Any) -> None:
        """Build the codebooks of the targets, where they differ from those of the history."""

    def build_layer(self, config: Any, index: int) -> LISAAttention:
        """LISA with its own quantiser; that of layer 0 quantises the items."""
        same = ("bidirectional", "histogram_values", "local_window", "local_heads")
        return LISAAttention(
            hidden_size=config["hidden_size"],
            projection=config["codebook_projection"],
            decay=config["histogram_decay"],
            **{name: config[name] for name in same},
            codebook=self.build_codebook(config, config["n_codewords"], hard=self.hard, of_items=index == 0),
        )

    @property
    def codebook(self) -> Codebook | None:
        """The quantiser of the items."""
        return self.encoder.layers()[0].quantizer

    @torch.no_grad()
    def layer_usage(self, interaction: Interaction) -> dict[str, tuple[int, CodewordUsage]]:
        """Layer above the first -> W, and how its codewords are used at the non-padding positions of a batch."""
        history = self.history(interaction)
        inputs = self.encoder.layer_inputs(*self.view_of(history))
        usage = {}
        for number, (layer, h) in enumerate(zip(self.encoder.layers()[1:], inputs[1:], strict=True), start=2):
            if layer.quantizer is not None:
                codes = layer.quantizer(take_non_padding(h, history.valid), n_keys=0).codes  # (M, B)
                n_codewords = layer.quantizer.n_codewords
                usage[f"layer {number}"] = n_codewords, codeword_usage(codes, n_codewords)
        return usage

    def calculate_loss(self, interaction: Interaction) -> Tensor | tuple[Tensor, ...]:
        """As AttentiveRecommender, after a restart of codebooks where the settings ask for it."""
        if self.training and self.n_batches is not None:
            from_data = self.init_from_data and not self.n_batches
            if from_data or (self.restart_unused and self.n_batches % RESTART_EVERY == 0):
                self._restart_codebooks(self.history(interaction), used_too=from_data)
            self.n_batches += 1
        return super().calculate_loss(interaction)

    @torch.no_grad()
    def _restart_codebooks(self, history: Sequences, *, used_too: bool) -> None:
        """Codebook.restart of the codebooks that learn, layer by layer; all processes use the first one's batch."""
        items = self.embed(self._blocks(1, -(-self.n_items // SAMPLED))[0])
        for book in (book for book in self.codebooks().values() if book.codewords.requires_grad):
            book.restart(items, used_too=used_too)
        for i, layer in list(enumerate(self.encoder.layers()))[1:]:
            x = take_non_padding(self.encoder.layer_inputs(history, self.item_view())[i], history.valid)  # (M, D)
            x = layer.sum_over_processes(x[torch.arange(SAMPLED, device=x.device) % len(x)] * is_first())
            assert layer.quantizer is not None
            layer.quantizer.restart(x, used_too=used_too)

    def regulariser(self, x: Tensor, view: ItemView, inputs: list[Tensor], valid: Tensor) -> Tensor | None:
        """reconstruction_weight * mean |x - stopgrad(y)|^2 over the batch's distinct items."""
        if not self.reconstruction_weight or view.quantized is None:
            return None
        y = view.quantized.reconstruction.detach()  # (U, D)
        return self.reconstruction_weight * (x - y).square().sum(dim=-1).mean()
