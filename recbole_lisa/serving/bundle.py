"""A trained model without RecBole and without its data: the content of an export, in memory."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from recbole_lisa.attention import Attention, build_attention
from recbole_lisa.layers.item_store import DenseItems, ItemStore
from recbole_lisa.layers.session_encoder import SessionEncoder
from recbole_lisa.serving.ids import IdMap

ITEM_CODEWORDS = "attentions.0.codebook.codewords"
"""The codewords that the items' codes refer to are also the encoder's; an export keeps them beside the codes."""


@dataclass(frozen=True)
class Bundle:
    """All that recommending needs."""

    model: str  # name of the model class
    dataset: str  # name of the data set that it was trained on
    encoder: dict[str, Any]  # `SequenceEncoder.settings()`
    weights: dict[str, Tensor]  # parameters and buffers of the encoder by name
    items: ItemStore  # V items; item 0 is the first real one, padding has none
    ids: IdMap  # raw id of each item
    time_unit: float  # seconds in which the model measures the gaps between interactions
    latest_time: float | None = None  # of the data set, where the model reads the gaps; unknown in older exports
    titles: dict[str, str] = field(default_factory=dict)  # title of an item by its raw id, for people

    @property
    def hidden_size(self) -> int:
        """D."""
        return int(self.encoder["hidden_size"])

    def code_tables(self) -> list[tuple[int, int]]:
        """B and W of each set of codebooks that stands for the item table; none for a table of vectors."""
        if isinstance(self.items, DenseItems):
            return []
        return [(len(part.codewords), part.codewords.shape[1]) for part in self.items.sets()]

    def table_bytes(self) -> tuple[float, float]:
        """Bytes of the float32 item table, 4 V D, and of its codes or vectors here, as the paper counts them.

        Codes take the sum of V B log2(W) / 8 + 4 B W D over the sets of codebooks (LISA, Related Work, after LightRec),
        and 4 D for each of dense_items.
        """
        n_items, width = len(self.ids), self.hidden_size
        dense = 4.0 * n_items * width
        coded = sum(n_items * b * math.log2(w) / 8 + 4.0 * b * w * width for b, w in self.code_tables())
        return dense, coded + 4.0 * len(self.items.targets.dense_items()) * width if coded else dense


class Network(SessionEncoder):
    """The encoder of a bundle, for inference only: no dropout, no gradients, LISA's tables computed once.

    A ValueError where the weights do not fit the settings, or a mechanism cannot run on this machine.
    """

    def __init__(self, bundle: Bundle) -> None:
        super().__init__(**_arguments(bundle.encoder))
        self.to(next(iter(bundle.weights.values())).dtype)
        self.load_state_dict(_with_item_codebook(bundle, self))
        self.eval().requires_grad_(False)
        self.attentions = nn.ModuleList(layer.frozen() for layer in self.layers())
        self.items: ItemStore = bundle.items
        if isinstance(bundle.items, DenseItems):
            self.items = bundle.items.replaced(bundle.items.targets.vectors, self.layers()[0].quantizer)


def check_weights(bundle: Bundle) -> None:
    """A ValueError for settings that do not fit the weights, before memory is allocated for them."""
    n_layers, n_weights = len(bundle.encoder["layers"]), len(bundle.weights)
    if not 1 <= n_layers <= n_weights:
        raise ValueError(f"its settings have {n_layers} layers, it has {n_weights} weights")
    try:
        with torch.device("meta"):  # shapes without memory
            encoder = SessionEncoder(**_arguments(bundle.encoder))
    except (TypeError, RuntimeError, OverflowError, KeyError, IndexError) as error:
        raise ValueError("its settings build no encoder: one has a value of the wrong type or size") from error
    quantizer = encoder.layers()[0].quantizer
    if quantizer is not None and not quantizer.hard and not isinstance(bundle.items, DenseItems):
        raise ValueError("its items are codes, its first layer reads soft assignments: hard must be true there")
    tensors = (*bundle.weights.values(), *bundle.items.state_dict().values())
    types = {str(tensor.dtype) for tensor in tensors if tensor.is_floating_point()}
    if len(types) > 1:
        raise ValueError(f"its numbers are of several types: {', '.join(sorted(types))}")
    check_shapes(_with_item_codebook(bundle, encoder), encoder.state_dict())


def check_shapes(weights: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    """Raise a ValueError with the first weight of another shape or kind of numbers than the expected tensor has."""
    for name in sorted(weights.keys() | expected.keys()):
        shape, right = (None if name not in x else tuple(x[name].shape) for x in (weights, expected))
        if shape != right:
            raise ValueError(f"the weight {name} has the shape {shape}, its settings give {right}")
        if weights[name].is_floating_point() != expected[name].is_floating_point():
            raise ValueError(f"the weight {name} is of {weights[name].dtype}, its settings give {expected[name].dtype}")


def encoder_weights(encoder: nn.Module, items: ItemStore) -> dict[str, Tensor]:
    """What `Network` loads of a `SequenceEncoder`, copied to the CPU; coded items keep their own codewords."""
    skipped = () if isinstance(items, DenseItems) else (ITEM_CODEWORDS,)
    return {name: tensor.detach().cpu().clone() for name, tensor in encoder.state_dict().items() if name not in skipped}


def _arguments(settings: dict[str, Any]) -> dict[str, Any]:
    """The arguments of the encoder for inference."""
    shapes = {key: value for key, value in settings.items() if key != "layers"}
    layers, max_length = settings["layers"], settings["max_length"]

    def build_layer(i: int) -> Attention:
        name, own = layers[i]
        return build_attention(name, **({"max_length": max_length} | own))

    return {"build_layer": build_layer, "n_layers": len(layers), "dropout": 0.0, **shapes}


def _with_item_codebook(bundle: Bundle, encoder: SessionEncoder) -> dict[str, Tensor]:
    """The weights, and the codewords that an export keeps beside the items' codes if the first layer reads them."""
    if isinstance(bundle.items, DenseItems) or encoder.layers()[0].quantizer is None:
        return bundle.weights
    return bundle.weights | {ITEM_CODEWORDS: bundle.items.history.codewords}
