"""A trained model without RecBole and without its data: what an export holds, in memory."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from recbole_lisa.attention import LISAAttention, build_attention
from recbole_lisa.attention.frozen_lisa import FrozenLISA
from recbole_lisa.layers.item_store import DenseItems, ItemStore
from recbole_lisa.layers.session_encoder import SessionEncoder
from recbole_lisa.serving.compression import CodeTable, coded_bytes, dense_bytes
from recbole_lisa.serving.id_map import IdMap


@dataclass(frozen=True)
class Bundle:
    """Everything that recommending needs.

    Attributes:
        model: name of the model class.
        dataset: name of the data set that it was trained on.
        encoder: `SequenceEncoder.encoder_settings()`.
        weights: parameters and buffers of the encoder by name.
        items: V items; item 0 is the first real one, padding has none.
        ids: raw id of each item.
        time_unit: seconds in which the model measures the gaps between interactions.
    """

    model: str
    dataset: str
    encoder: dict[str, Any]
    weights: dict[str, Tensor]
    items: ItemStore
    ids: IdMap
    time_unit: float

    @property
    def hidden_size(self) -> int:
        """D."""
        return int(self.encoder["hidden_size"])

    def code_tables(self) -> list[CodeTable]:
        """B and W of each set of codebooks that stands for the item table; none for a table of vectors."""
        if isinstance(self.items, DenseItems):
            return []
        return [CodeTable(*codewords.shape[:2]) for _, codewords in self.items.tables()]

    def table_bytes(self) -> tuple[float, float]:
        """Bytes of the float32 item table, and of what stands for it here, by the paper's formula."""
        dense = dense_bytes(len(self.ids), self.hidden_size)
        tables = self.code_tables()
        return dense, coded_bytes(len(self.ids), self.hidden_size, tables) if tables else dense


class Network(SessionEncoder):
    """The encoder of a bundle, for inference only: no dropout, no gradients, LISA's tables worked out once.

    Args:
        bundle: the trained model.

    Raises:
        ValueError: the weights do not fit the settings, or a mechanism cannot run on this machine.
    """

    def __init__(self, bundle: Bundle) -> None:
        super().__init__()
        settings = {**bundle.encoder}
        layers, max_length = settings.pop("layers"), settings["max_length"]
        self.add_encoder(
            lambda i: build_attention(layers[i][0], **({"max_length": max_length} | layers[i][1])),
            n_layers=len(layers),
            dropout=0.0,
            **settings,
        )
        self.to(next(iter(bundle.weights.values())).dtype)
        self.load_state_dict(self._with_item_codebook(bundle))
        self.eval().requires_grad_(False)
        for i, attention in enumerate(self.attentions):
            if isinstance(attention, LISAAttention):
                self.attentions[i] = FrozenLISA(attention)
        if isinstance(bundle.items, DenseItems) and isinstance(self.attentions[0], LISAAttention):
            self.items: ItemStore = DenseItems(bundle.items.targets.vectors, self.attentions[0].codebook)
        else:
            self.items = bundle.items

    def _with_item_codebook(self, bundle: Bundle) -> dict[str, Tensor]:
        """The weights, with the codewords that stand beside the items' codes where LISA attends with them."""
        if isinstance(bundle.items, DenseItems) or not isinstance(self.attentions[0], LISAAttention):
            return bundle.weights
        return bundle.weights | {ITEM_CODEWORDS: bundle.items.codewords}


ITEM_CODEWORDS = "attentions.0.codebook.codewords"
"""The codewords that the items' codes refer to are also the encoder's; an export keeps them beside the codes."""


def encoder_weights(encoder: torch.nn.Module, items: ItemStore) -> dict[str, Tensor]:
    """Copy what `Network` loads: parameters and buffers of the encoder's own modules, on the CPU.

    Args:
        encoder: A `SequenceEncoder`, which may own more than the encoder.
        items: The items; coded ones keep the codewords that they refer to.
    """
    own = ("position_embedding.", "attentions.", "blocks.")
    skipped = () if isinstance(items, DenseItems) else (ITEM_CODEWORDS,)
    return {
        name: tensor.detach().cpu().clone()
        for name, tensor in encoder.state_dict().items()
        if name.startswith(own) and name not in skipped
    }
