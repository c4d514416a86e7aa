"""A trained model without RecBole and without its data: what an export holds, in memory."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from recbole_lisa.attention import build_attention
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
        encoder: `SequenceEncoder.settings()`.
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
    """The encoder of a bundle, for inference only: no dropout, no gradients, LISA's tables computed once.

    Args:
        bundle: the trained model.

    Raises:
        ValueError: the weights do not fit the settings, or a mechanism cannot run on this machine.
    """

    def __init__(self, bundle: Bundle) -> None:
        settings = {**bundle.encoder}
        layers, max_length = settings.pop("layers"), settings["max_length"]
        super().__init__(
            lambda i: build_attention(layers[i][0], **({"max_length": max_length} | layers[i][1])),
            n_layers=len(layers),
            dropout=0.0,
            **settings,
        )
        self.to(next(iter(bundle.weights.values())).dtype)
        self.load_state_dict(self._with_item_codebook(bundle))
        self.eval().requires_grad_(False)
        self.attentions = nn.ModuleList(layer.frozen() for layer in self.layers())
        self.items: ItemStore = bundle.items
        if isinstance(bundle.items, DenseItems):
            self.items = DenseItems(bundle.items.targets.vectors, self.layers()[0].quantizer)

    def _with_item_codebook(self, bundle: Bundle) -> dict[str, Tensor]:
        """The weights, and the codewords that an export keeps beside the items' codes if the first layer reads them."""
        if isinstance(bundle.items, DenseItems) or self.layers()[0].quantizer is None:
            return bundle.weights
        return bundle.weights | {ITEM_CODEWORDS: bundle.items.codewords}


ITEM_CODEWORDS = "attentions.0.codebook.codewords"
"""The codewords that the items' codes refer to are also the encoder's; an export keeps them beside the codes."""


def encoder_weights(encoder: nn.Module, items: ItemStore) -> dict[str, Tensor]:
    """Copy what `Network` loads: parameters and buffers of the encoder, on the CPU.

    Args:
        encoder: A `SequenceEncoder`.
        items: The items; coded ones keep the codewords that they refer to.
    """
    skipped = () if isinstance(items, DenseItems) else (ITEM_CODEWORDS,)
    return {name: tensor.detach().cpu().clone() for name, tensor in encoder.state_dict().items() if name not in skipped}
