"""torch.compile for the encoder: the check that it works on this machine, and its use."""

from typing import Any

import torch

from recbole_lisa.errors import UsageError
from recbole_lisa.model.attentive_recommender import AttentiveRecommender


def check_compiler(config: Any) -> None:
    """Refuse, as a UsageError before any work is done, `compile` without a compiler or without an encoder of ours."""
    if not config["compile"]:
        return
    if not issubclass(config.model_class, AttentiveRecommender):
        raise UsageError(f"compile is True, but {config['model']} has no encoder to compile: leave compile out")
    device = config["device"]
    try:
        torch.compile(lambda x: x.sin() + 1)(torch.ones(8, device=device))
    except Exception as error:  # noqa: BLE001 - each part of the compiler has exceptions of its own
        lines = [line for line in str(error).split("\n") if line and not line.endswith("raised:")]
        tool = "Triton" if device.type == "cuda" else "a C++ compiler, such as g++"
        raise UsageError(
            f"compile is True, but torch.compile does not work here ({lines[0] if lines else type(error).__name__}): "
            f"install {tool}, or set compile to False"
        ) from error


def compile_encoder(model: AttentiveRecommender) -> None:
    """Compile attention and feed-forward of every layer in place, once for batches of any size.

    LISA's own operation is fused already and stays; so do mechanisms whose loops depend on the data.
    """
    attentions = [layer for layer in model.encoder.layers() if layer.compiles]
    for module in (*attentions, *model.encoder.blocks):
        module.compile(dynamic=True)
