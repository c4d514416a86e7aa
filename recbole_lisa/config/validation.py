"""Checks of the merged settings that need more than one key, or the disk. No data is read."""

import math
import re
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

from recbole_lisa.errors import UsageError, did_you_mean

RANKING_METRICS = ("Hit", "MRR", "NDCG", "Recall", "Precision", "MAP", "GAUC", "ShannonEntropy")
_BROKEN_METRICS = ("ItemCoverage", "AveragePopularity", "GiniIndex", "TailPercentage")
_VALUE_METRICS = ("AUC", "MAE", "RMSE", "LogLoss")
# These read item ids or the padding column from the score matrix, which a sampled evaluation does not have.
_FULL_ONLY_METRICS = ("GAUC", "ShannonEntropy")
_WITHOUT_CUTOFF = ("GAUC",)
_LEVELS = ("CRITICAL", "ERROR", "WARNING", "INFO", "DEBUG")

_EVAL_ARGS = ("split", "order", "group_by", "mode")
_NEGATIVES = ("distribution", "sample_num", "alpha", "dynamic")
# Keys of RecBole that decide nothing about sequences in time order: set, they would only mislead.
_WITHOUT_EFFECT = (
    "worker",
    "repeatable",
    "valid_metric_bigger",
    "transform",
    "require_pow",
    "POSITION_FIELD",
    "threshold",
    "preload_weight",
    "additional_feat_suffix",
    "alias_of_user_id",
    "alias_of_item_id",
    "alias_of_entity_id",
    "alias_of_relation_id",
    "kg_reverse_r",
    "entity_kg_num_interval",
    "relation_kg_num_interval",
)


def check_effect(external: Mapping[str, Any], defaults: Mapping[str, Any]) -> None:
    """Refuse to be asked for what would be ignored.

    Args:
        external: The settings of the user.
        defaults: The settings under them.

    Raises:
        UsageError: A key without effect has another value than its default.
    """
    for key in _WITHOUT_EFFECT:
        if key in external and external[key] != defaults.get(key):
            raise UsageError(f"{key} is {external[key]!r}, but it has no effect on these models: leave it out")


def check_metrics(settings: Mapping[str, Any]) -> None:
    """Check `metrics`, `topk` and `valid_metric` against what is computed.

    Raises:
        UsageError: A metric is unknown or not computed, `topk` is not positive, or `valid_metric` is none of
            the metrics reported.
    """
    metrics = [settings["metrics"]] if isinstance(settings["metrics"], str) else settings["metrics"]
    sampled = [mode for mode in evaluation_modes(settings).values() if mode != "full"]
    for metric in metrics:
        _check_metric(metric, sampled)
    topk = settings["topk"] if isinstance(settings["topk"], list) else [settings["topk"]]
    if not topk or not all(isinstance(k, int) and not isinstance(k, bool) and k >= 1 for k in topk):
        raise UsageError(f"topk is {settings['topk']!r}, it must be one or more whole numbers >= 1")
    reported = [metric if _is_in(metric, _WITHOUT_CUTOFF) else f"{metric}@{k}" for metric in metrics for k in topk]
    valid_metric = settings["valid_metric"]
    if not _is_in(valid_metric, reported):
        raise UsageError(
            f"valid_metric '{valid_metric}' is not reported: with these metrics and topk it must be one of "
            f"{', '.join(dict.fromkeys(reported))}.{did_you_mean(str(valid_metric), reported)}"
        )


def _check_metric(metric: Any, sampled: list[str]) -> None:
    if not isinstance(metric, str):
        raise UsageError(f"metrics holds {metric!r}, it must hold names of {', '.join(RANKING_METRICS)}")
    if _is_in(metric, _BROKEN_METRICS):
        raise UsageError(f"metric '{metric}' cannot be computed: RecBole 1.2.1 always fails on it")
    if _is_in(metric, _VALUE_METRICS):
        raise UsageError(f"metric '{metric}' compares values, these models rank: use {', '.join(RANKING_METRICS)}")
    if not _is_in(metric, RANKING_METRICS):
        raise UsageError(
            f"unknown metric '{metric}': known are {', '.join(RANKING_METRICS)}.{did_you_mean(metric, RANKING_METRICS)}"
        )
    if sampled and _is_in(metric, _FULL_ONLY_METRICS):
        raise UsageError(
            f"metric '{metric}' needs a ranking of every item: use eval_args mode 'full', not '{sampled[0]}'"
        )


def _is_in(name: str, names: tuple[str, ...] | list[str]) -> bool:
    # RecBole compares metric names without case.
    return str(name).lower() in {known.lower() for known in names}


def evaluation_modes(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Read how each phase is scored; one mode serves both phases.

    Returns:
        The modes of `valid` and `test`, such as `full` or `uni100`.
    """
    mode = settings["eval_args"].get("mode", "full")
    if not isinstance(mode, dict):
        return {"valid": mode, "test": mode}
    either = mode.get("valid", mode.get("test", "full"))
    return {"valid": mode.get("valid", either), "test": mode.get("test", either)}


def check_eval_args(settings: Mapping[str, Any]) -> None:
    """Check the parts of `eval_args`.

    Raises:
        UsageError: A part is unknown, or asks for what histories in time order cannot give.
    """
    eval_args = settings["eval_args"]
    _check_parts("eval_args", eval_args, _EVAL_ARGS)
    if eval_args["order"] != "TO":
        raise UsageError(f"eval_args order is {eval_args['order']!r}, it must be TO: histories are kept in time order")
    if eval_args["group_by"] != "user":
        raise UsageError(f"eval_args group_by is {eval_args['group_by']!r}, it must be user")
    split = eval_args["split"]
    if not isinstance(split, dict) or len(split) != 1 or not {*split} <= {"LS", "RS"}:
        raise UsageError(f"eval_args split is {split!r}, it must be {{LS: valid_and_test}} or {{RS: [0.8, 0.1, 0.1]}}")
    if split.get("LS", "test_only") not in ("valid_and_test", "valid_only", "test_only"):
        raise UsageError(f"eval_args split LS is {split['LS']!r}, it must be valid_and_test, valid_only or test_only")
    if "RS" in split and not _are_ratios(split["RS"]):
        raise UsageError(
            f"eval_args split RS is {split['RS']!r}, it must be three numbers >= 0 for training, validation and test, "
            "the first > 0, such as [0.8, 0.1, 0.1]"
        )
    mode = eval_args["mode"]
    if isinstance(mode, dict):
        _check_parts("eval_args mode", mode, ("valid", "test"))
    for chosen in evaluation_modes(settings).values():
        if not re.fullmatch(r"full|(uni|pop)[1-9]\d*", str(chosen)):
            raise UsageError(f"eval_args mode is {chosen!r}, it must be full, uniN or popN, such as uni100")


def _are_ratios(parts: Any) -> bool:
    if not isinstance(parts, list) or len(parts) != 3:
        return False
    return all(_is_number(part) and part >= 0 for part in parts) and parts[0] > 0


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def check_optimizer(settings: Mapping[str, Any]) -> None:
    """Check `adam_betas` and `clip_grad_norm`.

    Raises:
        UsageError: There are not two rates, or the parts are not those of a limit of the norm.
    """
    betas = settings["adam_betas"]
    if len(betas) != 2 or not all(_is_number(beta) for beta in betas):
        raise UsageError(f"adam_betas is {betas!r}, it must be two numbers in [0, 1), such as [0.9, 0.999]")
    clip = settings["clip_grad_norm"]
    if clip is None:
        return
    _check_parts("clip_grad_norm", clip, ("max_norm", "norm_type"))
    limit, kind = clip.get("max_norm"), clip.get("norm_type", 2)
    if not _is_number(limit) or limit <= 0:
        raise UsageError(f"clip_grad_norm max_norm is {limit!r}, it must be a number > 0, such as {{max_norm: 5}}")
    if kind != math.inf and not (_is_number(kind) and kind > 0):
        raise UsageError(f"clip_grad_norm norm_type is {kind!r}, it must be a number > 0 or .inf")


def check_model(settings: Mapping[str, Any]) -> None:
    """Check the settings of a model that depend on each other.

    Raises:
        UsageError: The heads of attention do not share the width evenly, or a bidirectional model would see
            its targets or has a histogram that fades.
    """
    heads, width = settings.get("n_heads"), settings.get("hidden_size")
    if heads and width and width % heads:
        raise UsageError(f"n_heads is {heads}, it must divide hidden_size, which is {width}")
    if not settings.get("bidirectional"):
        return
    if settings["supervision"] == "all_positions":
        raise UsageError(
            "bidirectional is True: every position would see the item it must predict; set supervision to last_position"
        )
    if settings.get("histogram_decay", 0) != 0:
        raise UsageError(
            f"histogram_decay is {settings['histogram_decay']!r}, with bidirectional True it must be 0: "
            "a histogram of the whole window has no past"
        )


def check_negatives(settings: Mapping[str, Any]) -> None:
    """Check `train_neg_sample_args` against the loss: every loss but CE compares with negatives.

    Raises:
        UsageError: Negatives are missing, superfluous or not of a known kind.
    """
    negatives, loss = settings["train_neg_sample_args"], settings["loss_type"]
    has_negatives = negatives is not None and negatives.get("distribution", "uniform") not in (None, "none")
    if loss == "CE":
        if has_negatives:
            raise UsageError(
                f"train_neg_sample_args is {negatives!r}, with loss_type CE it must be ~: CE ranks every item"
            )
        return
    if not has_negatives:
        raise UsageError(
            f"train_neg_sample_args is {negatives!r}, loss_type {loss} needs negatives: "
            "{distribution: uniform, sample_num: 1}"
        )
    if negatives.get("candidate_num", 0) == 0:
        negatives = {part: value for part, value in negatives.items() if part != "candidate_num"}
    _check_parts("train_neg_sample_args", negatives, _NEGATIVES)
    distribution, count = negatives.get("distribution", "uniform"), negatives.get("sample_num", 1)
    if distribution not in ("uniform", "popularity"):
        raise UsageError(f"train_neg_sample_args distribution is {distribution!r}, it must be uniform or popularity")
    if not isinstance(count, int) or isinstance(count, bool) or count < 1:
        raise UsageError(f"train_neg_sample_args sample_num is {count!r}, it must be a whole number >= 1")
    alpha = negatives.get("alpha", 1.0)
    if not _is_number(alpha) or alpha < 0:
        raise UsageError(f"train_neg_sample_args alpha is {alpha!r}, it must be a number >= 0")
    if negatives.get("dynamic", False):
        raise UsageError("train_neg_sample_args dynamic is True, dynamic negatives are not supported: set it to False")


def _check_parts(name: str, parts: Any, known: tuple[str, ...]) -> None:
    if not isinstance(parts, dict):
        raise UsageError(f"{name} is {parts!r}, it must hold some of {', '.join(known)}")
    for part in parts:
        if part not in known:
            hint = did_you_mean(str(part), known)
            raise UsageError(f"unknown part '{part}' of {name}: known are {', '.join(known)}.{hint}")


def check_processes(settings: Mapping[str, Any], external: Mapping[str, Any], n_gpus: int | None) -> None:
    """Check `nproc` against the machine and the batch.

    Args:
        settings: All settings.
        external: The settings of the user.
        n_gpus: GPUs that the run may use; None on the CPU.

    Raises:
        UsageError: There are fewer GPUs than processes or one of them was chosen, or a batch has fewer rows.
    """
    nproc = settings["nproc"]
    if nproc == 1:
        return
    if n_gpus is not None and "gpu_id" in external:
        raise UsageError(
            f"gpu_id is {settings['gpu_id']!r}, but nproc={nproc} takes the first {nproc} GPUs: leave gpu_id out and "
            "choose by CUDA_VISIBLE_DEVICES"
        )
    if n_gpus is not None and nproc > n_gpus:
        raise UsageError(
            f"nproc is {nproc}, but there are {n_gpus} GPUs and each process needs one: set nproc to {n_gpus} or "
            "fewer, or use_gpu to False"
        )
    if nproc > settings["train_batch_size"]:
        raise UsageError(
            f"nproc is {nproc}, but train_batch_size is {settings['train_batch_size']} and the processes share it: set "
            f"nproc to {settings['train_batch_size']} or fewer"
        )


def mixed_precision(settings: Mapping[str, Any], external: Mapping[str, Any]) -> dict[str, Any]:
    """Bring `amp` and RecBole's `enable_amp` and `enable_scaler`, which say the same, into agreement.

    Args:
        settings: All settings.
        external: The settings of the user.

    Returns:
        The three keys. `enable_amp` alone is `amp: bf16`, and with `enable_scaler` it is `amp: fp16`.

    Raises:
        UsageError: The user's settings contradict each other.
    """
    enabled, scaled = bool(settings["enable_amp"]), bool(settings["enable_scaler"])
    if scaled and not enabled and "amp" not in external:
        raise UsageError("enable_scaler is True, but only fp16 needs a scaled loss: set amp to fp16 instead")
    named = ("fp16" if scaled else "bf16") if enabled else "no"
    amp = settings["amp"] if "amp" in external else named
    wanted = {"amp": amp, "enable_amp": amp != "no", "enable_scaler": amp == "fp16"}
    for key in ("enable_amp", "enable_scaler"):
        if key in external and bool(external[key]) != wanted[key]:
            raise UsageError(f"{key} is {external[key]!r}, but amp is '{amp}': leave {key} out")
    return wanted


def check_surroundings(settings: Mapping[str, Any]) -> None:
    """Check what the run asks of the machine around it: the log's level and wandb.

    Raises:
        UsageError: The level is unknown, or wandb is not installed.
    """
    if str(settings["state"]).upper() not in _LEVELS:
        raise UsageError(
            f"state is {settings['state']!r}, it must be one of {', '.join(_LEVELS)}."
            f"{did_you_mean(str(settings['state']), _LEVELS)}"
        )
    if settings["log_wandb"]:
        found = find_spec("wandb")
        if found is None or found.origin is None:  # a run leaves a folder of this name, which is no package
            raise UsageError("log_wandb is True, but wandb is not installed: install it or leave log_wandb out")
