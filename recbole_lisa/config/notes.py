"""The lines of the log about settings: those without effect, and those that the program chose."""

from collections.abc import Mapping
from math import isclose
from typing import Any

import torch

Settings = Mapping[str, Any]

# Keys of RecBole without effect on these models. RecBole's data set gets its defaults, so that it cannot fail on them.
WITHOUT_EFFECT = (
    *("worker", "repeatable", "valid_metric_bigger", "transform", "require_pow", "threshold", "preload_weight"),
    *("POSITION_FIELD", "additional_feat_suffix", "unused_col", "kg_reverse_r"),
    *("alias_of_user_id", "alias_of_item_id", "alias_of_entity_id", "alias_of_relation_id"),
    *("RATING_FIELD", "LABEL_FIELD", "ENTITY_ID_FIELD", "RELATION_ID_FIELD", "HEAD_ENTITY_ID_FIELD"),
    *("TAIL_ENTITY_ID_FIELD", "numerical_features", "discretization"),
    *("entity_kg_num_interval", "relation_kg_num_interval"),
)
_ONLY_WITH = (  # a key, another key, and the values of this one that the first needs; "above 0" is any but 0
    *(("seen_negatives", "loss_type", "CE"), ("gbce_t", "loss_type", "gBCE")),
    *(("score_temperature", "score", "cosine"), ("item_codes_checkpoint", "item_codes", "kmeans")),
    *(("local_heads", "local_window", "above 0"), ("adam_betas", "learner", "adam or adamw")),
    *((f"codebook_{part}", "quantize_items", "True") for part in ("similarity", "encoding", "temperature")),
    *((key, "quantize_items", "True") for key in ("n_codebooks", "n_codewords")),
    *(("wandb_project", "log_wandb", "True"), ("tail_ratio", "metrics", "TailPercentage")),
)
_OF_PHASE = {"validation": ("eval_step", "stopping_step", "valid_metric"), "test": ("test_step", "per_user_file")}


def log_notes(settings: Settings, external: Settings, defaults: Settings) -> list[str]:
    """Lines for the log: settings of the user that have no effect, and settings that the program chose."""
    changed = {key: value for key, value in external.items() if value != defaults.get(key)}
    without_effect = [f"{key}={changed[key]!r}" for key in WITHOUT_EFFECT if key in changed]
    lines = [f"no effect: {', '.join(without_effect)}"] if without_effect else []
    lines += of_other_settings(settings, changed)
    lines += _of_item_codes(settings, changed)
    if settings["normalize_all"] or settings["TIME_FIELD"] in (settings["normalize_field"] or ()):
        lines.append(f"no effect on {settings['TIME_FIELD']}: normalize_all and normalize_field leave times in seconds")
    negatives = settings.get("train_neg_sample_args") or {}
    if negatives.get("distribution") == "uniform" and (alpha := negatives.get("alpha", 1)) != 1:
        lines.append(
            f"no effect: train_neg_sample_args alpha={alpha}; it needs the distribution popularity, not uniform"
        )
    shared, number = settings.get("shared_negatives"), negatives.get("sample_num", 1)
    if shared and number != 1:
        lines.append(f"no effect: train_neg_sample_args sample_num={number}; the shared_negatives={shared} are drawn")
    is_ranked = settings["eval_seen"] == "rank" and "full" in str(settings["eval_args"]["mode"])
    if settings.get("seen_negatives") is False and settings["loss_type"] == "CE" and is_ranked:
        lines.append("seen_negatives is False, but eval_seen is rank: seen items, which were no negatives, rank high")
    lines += [*_of_epochs(settings, changed), *_of_split(settings, changed)]
    gpu_settings = [f"{key}={external[key]!r}" for key in ("use_gpu", "gpu_id") if key in external]
    if settings["use_gpu"] and settings["gpu_id"] and gpu_settings and not torch.cuda.is_available():
        lines.append(f"no effect: {', '.join(gpu_settings)}; torch finds no GPU, the run uses the CPU")
    elif "," in str(settings["gpu_id"]):
        lines.append(f"gpu_id is {settings['gpu_id']!r}: the first GPU is used; nproc takes several")
    if settings["valid_metric"] != external.get("valid_metric", defaults["valid_metric"]):
        lines.append(f"valid_metric is {settings['valid_metric']}: {defaults['valid_metric']} is not among the metrics")
    return lines


def of_other_settings(settings: Settings, changed: Settings) -> list[str]:
    """Lines for settings that need another value of another setting."""
    lines = []
    for key, other, values in _ONLY_WITH:
        is_idle = other in settings and not _is_one_of(settings[other], values)
        if is_idle and (key in changed or settings.get(key) is False):  # False is of a recipe
            lines.append(f"no effect: {key}={settings[key]!r}; it needs {other} {values}, not {settings[other]}")
    return lines


def _is_one_of(value: Any, values: str) -> bool:
    known, given = values.lower().split(" or "), value if isinstance(value, list) else [value]
    return bool(value) if values == "above 0" else any(str(one).lower() in known for one in given)


def _of_item_codes(settings: Settings, changed: Settings) -> list[str]:
    """Settings of item embeddings, and with one layer those of the quantiser, beside fixed codes."""
    if settings.get("item_codes", "learned") == "learned":
        return []
    of_quantiser = [f"codebook_{part}" for part in ("similarity", "encoding", "temperature")]
    keys = ["scale_embedding", *(of_quantiser if settings["n_layers"] == 1 else [])]
    idle = [f"{key}={changed[key]!r}" for key in keys if key in changed]
    codes = f"items have the codes of item_codes {settings['item_codes']}"
    return [f"no effect: {', '.join(idle)}; {codes}"] if idle else []


def _of_epochs(settings: Settings, changed: Settings) -> list[str]:
    """Steps that are beyond the last epoch."""
    epochs = settings["epochs"]
    limits = {"eval_step": epochs, "test_step": epochs, "stopping_step": epochs // max(settings["eval_step"], 1) - 1}
    idle = [key for key, most in limits.items() if epochs and key in changed and settings[key] > most]
    return [f"no effect: {key}={settings[key]}; the run has {epochs} epochs" for key in idle]


def _of_split(settings: Settings, changed: Settings) -> list[str]:
    """Parts without items, epochs at the end that are not validated, and ratios that do not sum to 1."""
    split, files, lines = settings["eval_args"]["split"], settings["benchmark_filename"], []
    ratios = next(iter(split.values())) if files is None else []
    if "TS" in split and changed.get("eval_args", {}).get("group_by") == "user":
        lines.append(f"no effect: eval_args group_by='user'; the split {split} is one in time for all")
    if files is not None:
        lines.append(f"no effect: eval_args split, the files {', '.join(files)} are the split")
    without = {"validation": ratios == "test_only", "test": ratios == "valid_only"}
    if len(ratios) == 3:
        without = {"validation": ratios[1] == 0, "test": ratios[2] == 0}
    for phase in (phase for phase, is_empty in without.items() if is_empty):
        if idle := [f"{key}={changed[key]!r}" for key in _OF_PHASE[phase] if key in changed]:
            lines.append(f"no effect: {', '.join(idle)}; the split {split} has no {phase} items")
    epochs, step = settings["epochs"], settings["eval_step"]
    if not without["validation"] and 0 < step <= epochs and (left := epochs % step):
        lines.append(
            f"eval_step is {step}: epoch {epochs - left} of {epochs} is the last that is validated and can be the best"
        )
    if len(ratios) == 3 and not isclose(sum(ratios), 1):
        fractions = ", ".join(f"{ratio / sum(ratios):.4g}" for ratio in ratios)
        lines.append(f"eval_args split {ratios}: the fractions are {fractions}")
    return lines
