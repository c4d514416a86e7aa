"""LISA-Base with the codebooks of a vanilla Transformer ("Migrating Codebooks from Vanilla Self-Attention").

The Transformer is trained on quantised items; its item embeddings and codebooks are frozen in a LISA-Base, whose other
parameters start from the Transformer's:

    P^Q = W_Q^T,  P^K = W_K^T,  P^V = W_V^T W_O^T      for every codebook
    position' = position + W_O b_V + b_O               the constant that LISA's attention lacks

If every codebook had the attention of the whole item, the outputs would be the Transformer's. LISA drops the inner
products between codebooks, so the model needs further training; the frozen parts do not change in it.
"""

import os
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from recbole.utils import init_seed

from recbole_lisa.config.config import LISAConfig, settings_by_key
from recbole_lisa.config.model_defaults import model_defaults
from recbole_lisa.config.registry import model_class
from recbole_lisa.data.dataloader import create_loaders
from recbole_lisa.data.dataset import create_dataset
from recbole_lisa.errors import UsageError
from recbole_lisa.files import check_output, locked, new_folder, path_of
from recbole_lisa.model.attentive_recommender import current_names
from recbole_lisa.quick_start import check_run, may_overwrite, run_configured
from recbole_lisa.training.checkpoint import Checkpoint
from recbole_lisa.training.checkpoint_file import RUN_KEYS, load_checkpoint, save_checkpoint
from recbole_lisa.training.resuming import check_data
from recbole_lisa.training.trainer import LISATrainer

SOURCE, TARGET = "Transformer", "LISABase"
_UNTRAINED = -1
_SIZES = ("hidden_size", "inner_size", "n_codebooks", "n_codewords", "codebook_similarity", "MAX_ITEM_LIST_LENGTH")
_LOCAL = ("resume", "result_file", "per_user_file", "overwrite", "epochs")
_OF_TRAINING = ("resume", "result_file", "per_user_file")
_FORM = {"block": "post_norm", "positions": "absolute", "conv_width": 0, "attention_gate": False}


def migrate(
    path: str | os.PathLike[str], output: str | os.PathLike[str], settings: Mapping[str, Any]
) -> tuple[dict[str, float] | None, dict[str, Any] | None]:
    """Make a LISABase from a Transformer's checkpoint, test it, and train it further where epochs are given.

    Args:
        path: Checkpoint of a `Transformer` with `quantize_items: True` and one layer.
        output: Checkpoint to write, of the LISABase without further training.
        settings: Settings of the LISABase and of its training; others are the Transformer's. With `epochs` it is
            trained further. `overwrite` and `resume` allow to replace `output`.

    Returns:
        The metrics without further training, and the result of the run with it, or None.

    Raises:
        UsageError: The checkpoint does not fit, a setting is wrong, or `output` exists or is being written.
    """
    settings, target = settings_by_key(settings, "settings"), path_of(output, "output")
    if target.suffix != ".pth":
        raise UsageError(f"output is '{target}', it must end in .pth")
    if idle := [key for key in _OF_TRAINING if settings.get(key) and "epochs" not in settings]:
        raise UsageError(f"{idle[0]} is of the training after the migration: give epochs, too, or leave it out")
    state = load_checkpoint(path, needed=RUN_KEYS)
    check_source(state, path)
    config = _config(state, settings)
    check_output(target, overwrite=may_overwrite(config), source=path)
    if "epochs" in settings:
        check_run(config)
    refusal = f"another process writes '{target}': wait for its end, or name another file"
    with new_folder(target.parent), locked(target.with_suffix(".lock"), refusal):
        metrics = _migrated(state, path, config, target)
        if "epochs" not in settings:
            return metrics, None
        prepare = partial(take_over, weights=state["state_dict"])
        return metrics, run_configured(_config(state, settings), prepare=prepare)


def _migrated(state: Mapping[str, Any], path: Any, config: LISAConfig, output: Path) -> dict[str, float] | None:
    """Write the LISABase without further training and return its metrics."""
    train, _, test = create_loaders(config, create_dataset(config))
    check_data(state, path, train.dataset.data_fingerprint)
    init_seed(config["seed"], config["reproducibility"])
    network = config.model_class(config, train.dataset).to(config["device"])
    take_over(network, state["state_dict"])
    trainer = LISATrainer(config, network)
    Checkpoint(trainer).adopt_data(train)
    metrics = trainer.evaluate(test, load_best_model=False, show_progress=bool(config["show_progress"]))
    save_checkpoint(Checkpoint(trainer).state_dict(_UNTRAINED), output)
    return metrics


def check_source(state: Mapping[str, Any], path: str | os.PathLike[str]) -> None:
    """Refuse, as a UsageError, a checkpoint of another model, of unquantised items, or of several layers."""
    if state["model"] != SOURCE or not state["config"].get("quantize_items"):
        how = " trained without --quantize_items=True" if state["model"] == SOURCE else ""
        needed = f"--model={SOURCE} --quantize_items=True"
        raise UsageError(f"'{path}' is a {state['model']}{how}: give a checkpoint of a run with {needed}")
    if (codes := state["config"].get("item_codes", "learned")) != "learned":
        raise UsageError(f"'{path}' has item_codes {codes}: train {TARGET} with the same item_codes instead")
    if (n_layers := state["config"]["n_layers"]) != 1:
        raise UsageError(f"'{path}' has n_layers {n_layers}: only the codebooks of a single layer's items migrate")


@torch.no_grad()
def take_over(network: Any, weights: Mapping[str, torch.Tensor]) -> None:
    """Give a LISABase of one layer the parameters of a Transformer's state_dict; a UsageError where sizes differ."""
    weights, own, layer = current_names(weights), network.state_dict(), "encoder.attentions.0."
    query, key, value, output = (weights[f"{layer}{n}.weight"].t() for n in ("query", "key", "value", "output"))
    constant = weights[f"{layer}value.bias"] @ output + weights[f"{layer}output.bias"]
    taken = {
        name.replace("item_codebook.", f"{layer}codebook."): weight
        for name, weight in weights.items()
        if not name.startswith("encoder.attentions.")
    }
    taken["encoder.position_embedding.weight"] = weights["encoder.position_embedding.weight"] + constant
    for name, weight in (("query", query), ("key", key), ("value", value @ output)):
        taken[layer + name] = weight.expand_as(own[layer + name])
    try:
        network.load_state_dict({**own, **taken})
    except RuntimeError as error:
        raise UsageError(f"the Transformer does not fit this {TARGET}: {', '.join(_SIZES)} must be equal") from error


def _config(state: Mapping[str, Any], settings: Mapping[str, Any]) -> LISAConfig:
    """The Transformer's configuration for a LISABase, with the user's settings over it."""
    foreign = model_defaults(model_class(SOURCE)).keys() - model_defaults(model_class(TARGET)).keys()
    plain = {key: value for key, value in state["config"].items() if key not in foreign and key not in _LOCAL}
    config = LISAConfig.from_plain(plain, model=TARGET, command_line={**settings, "freeze_codebooks": True})
    for key in ("n_layers", *_SIZES):
        if config[key] != plain[key]:
            raise UsageError(f"{key} is {config[key]}, it must be that of the checkpoint, {plain[key]}: leave it out")
    for key, value in _FORM.items():
        if config[key] != value:
            raise UsageError(f"{key} is {config[key]}: only the codebooks of a model with {key} {value} migrate")
    return config
