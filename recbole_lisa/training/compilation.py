"""torch.compile for the encoder: whether it works here, and what it is used on."""

from typing import Any

import torch
from torch import Tensor

from recbole_lisa.errors import UsageError
from recbole_lisa.model.attentive_recommender import AttentiveRecommender


def check_compiler(config: Any) -> None:
    """Compile something tiny where `compile` is set: a missing compiler shows before any work is done.

    Args:
        config: Of the run: `compile`, `device`, and its model class.

    Raises:
        UsageError: Nothing can be compiled here, or the model has no encoder of ours.
    """
    if not config["compile"]:
        return
    if not issubclass(config.model_class, AttentiveRecommender):
        raise UsageError(f"compile is True, but {config['model']} has no encoder to compile: leave compile out")
    device = config["device"]
    try:
        torch.compile(_probe)(torch.ones(8, device=device))
    except Exception as error:  # noqa: BLE001 - each part of the compiler has exceptions of its own
        lines = [line for line in str(error).split("\n") if line and not line.endswith("raised:")]
        tool = "Triton" if device.type == "cuda" else "a C++ compiler, such as g++"
        raise UsageError(
            f"compile is True, but torch.compile does not work here ({lines[0] if lines else type(error).__name__}): "
            f"install {tool}, or set compile to False"
        ) from error


def _probe(x: Tensor) -> Tensor:
    return x.sin() + 1


def compile_encoder(model: AttentiveRecommender) -> None:
    """Compile the attention and the feed-forward part of every layer, once for batches of any size.

    LISA's own operation stays as it is, fused already; so do mechanisms whose loops depend on the data.

    Args:
        model: Changed in place; its parameters keep their names.
    """
    attentions = [layer for layer in model.encoder.layers() if layer.compiles]
    for module in (*attentions, *model.encoder.blocks):
        module.compile(dynamic=True)
