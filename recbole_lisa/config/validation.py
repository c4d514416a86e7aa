"""Checks of the merged settings that depend on several keys or on the machine. No data is read."""

import re
from collections.abc import Iterable, Mapping
from datetime import datetime, timezone
from importlib.util import find_spec
from typing import Any

import torch
from recbole.evaluator.register import metric_information, metric_types, metrics_dict

from recbole_lisa.config.fields import FieldNames
from recbole_lisa.config.model_defaults import inner_width
from recbole_lisa.config.query_time import reads_query_time
from recbole_lisa.config.schema import Key, check_value, is_number
from recbole_lisa.errors import UsageError, did_you_mean

Settings = Mapping[str, Any]

# Data that RecBole's metrics may need: no ranking has the first, a sampled evaluation has neither.
_VALUES, _ALL_ITEMS = {"rec.score", "data.label"}, {"rec.items", "rec.meanrank"}
SEEN_SUFFIXES = {"rank": ("",), "mask": ("_masked",), "both": ("", "_masked")}
"""`eval_seen` -> the endings of the names of metrics."""
_FILES = ("inter", "user", "item", "net", "kg", "link")
_RECBOLES_METRICS = "recbole.evaluator.metrics"
_LEVELS = ("CRITICAL", "ERROR", "WARNING", "INFO", "DEBUG")
# The parts of settings that are dicts.
_PARTS = {
    "eval_args": (
        Key("split", ("dict",), nullable=False),
        Key("order", ("str",), nullable=False, choices=("TO",)),
        Key("group_by", ("str",), nullable=False, choices=("user", "none")),
        Key("mode", ("dict", "str"), nullable=False),
    ),
    "eval_args split": (
        Key("LS", ("str",), nullable=False, choices=("valid_and_test", "valid_only", "test_only")),
        Key("RS", ("list",), nullable=False, bound=">= 0"),
        Key("TS", ("list",), nullable=False),
    ),
    "eval_args mode": (Key("valid", ("str",), nullable=False), Key("test", ("str",), nullable=False)),
    "train_neg_sample_args": (
        Key("distribution", ("str",), nullable=False, choices=("uniform", "popularity")),
        Key("sample_num", ("int",), nullable=False, bound=">= 1"),
        Key("alpha", ("float",), nullable=False, bound=">= 0"),
        Key("dynamic", ("bool",)),
    ),
    "clip_grad_norm": (
        Key("max_norm", ("float",), nullable=False, bound="> 0"),
        Key("norm_type", ("float",), nullable=False, bound="in (0, inf]"),
    ),
}


def completed(settings: Settings, external: Settings) -> dict[str, Any]:
    """The settings that depend on others: number types, negatives, inner_size, the metric of the best epoch, dicts.

    `settings` are all, `external` those of the user; a UsageError if they contradict, or a part of a dict is wrong.
    """
    changed = {**_mixed_precision(settings, external), "eval_args": checked_eval_args(settings["eval_args"])}
    if settings["clip_grad_norm"] is not None:
        changed["clip_grad_norm"] = _checked_parts("clip_grad_norm", settings["clip_grad_norm"])
        if "max_norm" not in changed["clip_grad_norm"]:
            raise UsageError("clip_grad_norm lacks max_norm: write clip_grad_norm={max_norm: 5}")
    if "loss_type" in settings:
        changed["train_neg_sample_args"] = checked_negatives(settings["train_neg_sample_args"], settings["loss_type"])
    if isinstance(settings.get("inner_size"), str):
        changed["inner_size"] = inner_width(settings["inner_size"], settings["hidden_size"])
    return {**changed, "valid_metric": valid_metric_of(settings, external)}


def valid_metric_of(settings: Settings, external: Settings) -> str:
    """The metric of the best epoch: that of the user, or the default or the one most like it that is reported."""
    reported, default = _reported(settings), settings["valid_metric"]
    if "valid_metric" in external or _is_in(default, reported):
        return str(default)
    suffixes = SEEN_SUFFIXES[settings["eval_seen"]]
    first = reported[: len(reported) // len(suffixes)]  # of `both`, those of `rank`
    same_metric = [name for name in first if name.split("@")[0] == default.split("@")[0]]
    masked = [name for name in same_metric if _is_in(name, [default + suffixes[0]])]
    return str([default, *first[:1], *same_metric, *masked][-1])


def check_valid_metric(settings: Settings) -> None:
    """Refuse a `valid_metric` that is not reported by a UsageError."""
    metric, reported = str(settings["valid_metric"]), _reported(settings)
    if not _is_in(metric, reported):
        names, hint = ", ".join(dict.fromkeys(reported)), did_you_mean(metric, reported)
        raise UsageError(f"valid_metric '{metric}' is not reported: choose one of {names}.{hint}")


def check_settings(settings: Settings) -> None:
    """Check complete settings; a UsageError if two do not fit together, or the machine lacks what one needs."""
    _check_metrics(settings)
    _check_columns(settings)
    _check_training(settings)
    _check_sparse_updates(settings)
    check_model(settings)
    betas = settings["adam_betas"]
    if len(betas) != 2 or not all(map(is_number, betas)):
        raise UsageError(f"adam_betas is {betas!r}, it must be two numbers in [0, 1), such as [0.9, 0.999]")
    if str(settings["state"]).upper() not in _LEVELS:
        hint = did_you_mean(str(settings["state"]), _LEVELS)
        raise UsageError(f"state is {settings['state']!r}, it must be one of {', '.join(_LEVELS)}.{hint}")
    if settings["per_user_file"] is not None and not settings["per_user_file"].endswith((".csv", ".json")):
        raise UsageError(f"per_user_file is {settings['per_user_file']!r}, it must end in .csv or .json")
    if settings["log_wandb"]:
        wandb = find_spec("wandb")
        if wandb is None or wandb.origin is None:  # a folder `wandb` that a run has left is not the package
            raise UsageError("log_wandb is True, but wandb is not installed: install it or leave log_wandb out")


def device_of(settings: Settings, external: Settings) -> torch.device:
    """The device of a run: by default the current GPU, where there is one. Checks `nproc` as well.

    Raises:
        UsageError: `gpu_id` is not a GPU, there are fewer GPUs than processes, or a batch has fewer rows.
    """
    first, *others = (part.strip() for part in str(settings["gpu_id"]).strip("[]").split(","))
    if not all(part.isdecimal() for part in (first, *others) if part or others):
        raise UsageError(f"gpu_id is {settings['gpu_id']!r}, it must be the number of a GPU; use_gpu=False for the CPU")
    n_gpus = torch.cuda.device_count() if settings["use_gpu"] and torch.cuda.is_available() and first else 0
    nproc, batch = settings["nproc"], settings["train_batch_size"]
    if nproc > batch:
        raise UsageError(f"nproc is {nproc}, but train_batch_size is {batch}: set nproc to {batch} or fewer")
    if not n_gpus:
        return torch.device("cpu")
    if nproc > n_gpus:
        raise UsageError(f"nproc is {nproc}, one GPU each: set it to {n_gpus} or fewer, or use_gpu to False")
    if "gpu_id" not in external:
        return torch.device("cuda")
    if nproc > 1:
        raise UsageError(f"nproc={nproc} takes the first {nproc} GPUs: choose by CUDA_VISIBLE_DEVICES, not by gpu_id")
    if int(first) >= n_gpus:
        raise UsageError(f"gpu_id is {first}, it must be a number from 0 to {n_gpus - 1}; use_gpu=False for the CPU")
    return torch.device("cuda", int(first))


def _checked_parts(name: str, parts: Any) -> dict[str, Any]:
    keys = {key.name: key for key in _PARTS[name]}
    if not isinstance(parts, dict):
        raise UsageError(f"{name} is {parts!r}, it must hold some of {', '.join(keys)}")
    for part in parts:
        if part not in keys:
            hint = did_you_mean(str(part), keys)
            raise UsageError(f"unknown part '{part}' of {name}: known are {', '.join(keys)}.{hint}")
    return {part: check_value(keys[part], value, name) for part, value in parts.items()}


def checked_eval_args(eval_args: Any) -> dict[str, Any]:
    """`eval_args` with values of the right types; see `completed`."""
    checked = _checked_parts("eval_args", eval_args)
    split, mode = checked["split"], checked["mode"]
    if len(split) != 1 or not {*split} <= {"LS", "RS", "TS"}:
        raise UsageError(f"eval_args split is {split!r}, it must be {{LS: valid_and_test}} or {{RS: [0.8, 0.1, 0.1]}}")
    if "TS" in split:
        return {**checked, "split": {"TS": _checked_times(split["TS"], mode)}}
    if checked["group_by"] == "none":
        right = (
            "set it to user; none is for one split in time for all, {TS: [0.8, 0.1, 0.1]}, as in --protocol=global_time"
        )
        raise UsageError(f"eval_args group_by is 'none', but the split is {split}: {right}")
    ratios = _checked_parts("eval_args split", split).get("RS", [1, 0, 0])
    if len(ratios) != 3 or not all(map(is_number, ratios)) or ratios[0] == 0:
        raise UsageError(f"eval_args split RS is {ratios!r}, it must be like [0.8, 0.1, 0.1], the first above 0")
    for phase_mode in _listed(_checked_parts("eval_args mode", mode) if isinstance(mode, dict) else mode):
        if not re.fullmatch(r"full|(uni|pop)[1-9]\d*", phase_mode):
            raise UsageError(f"eval_args mode is {phase_mode!r}, it must be full, uniN or popN, such as uni100")
    return checked


def _checked_times(times: Any, mode: Any) -> list[float]:
    """Three ratios, or two points in time in seconds (of dates: UTC)."""
    try:
        points = [t if is_number(t) else datetime.fromisoformat(t) for t in times]
        ends = [
            t.replace(tzinfo=t.tzinfo or timezone.utc).timestamp() if isinstance(t, datetime) else t for t in points
        ]
    except (TypeError, ValueError):
        ends = []
    is_ratios = len(ends) == 3 and ends == times and min(ends) >= 0 < ends[0]
    if not is_ratios and not (len(ends) == 2 and ends[0] < ends[1]):
        right = "[0.8, 0.1, 0.1], the first above 0, or two dates such as [2020-01-01, 2020-03-01]"
        raise UsageError(f"eval_args split TS is {times!r}, it must be ratios like {right}")
    if {*_listed(mode)} != {"full"}:
        raise UsageError(f"eval_args mode is {mode!r}, with split TS it must be full: negatives would be of the future")
    return ends


def _reported(settings: Settings) -> list[str]:
    """Names of the reported values. GAUC and metrics of values have no cutoff; one of the user is named both ways."""
    suffixes = SEEN_SUFFIXES[settings["eval_seen"]]
    reported = []
    for metric in _listed(settings["metrics"]):
        kind = metrics_dict.get(str(metric).lower())
        with_cutoffs = [f"{metric}@{k}" for k in _listed(settings["topk"])]
        reported += [str(metric)] if _is_in(metric, ("GAUC",)) or _VALUES & _needs(metric) else with_cutoffs
        reported += [str(metric)] if kind and kind.__module__ != _RECBOLES_METRICS else []
    return [f"{name}{suffix}" for suffix in suffixes for name in reported]


def ranking_metrics() -> list[str]:
    """Names of the metrics in RecBole's register that a ranking allows, with those that the user has added."""
    names = [name for name in metrics_dict if name in metric_types and not _VALUES & _needs(name)]
    return [metrics_dict[name].__name__ if metrics_dict[name].__name__.lower() == name else name for name in names]


def _needs(metric: Any) -> set[str]:
    return {*metric_information.get(str(metric).lower(), _VALUES)}


def _listed(value: Any) -> list[Any]:
    """The values of a list or a dict, or the value itself."""
    return [*value.values()] if isinstance(value, dict) else value if isinstance(value, list) else [value]


def _is_in(name: Any, names: Iterable[str]) -> bool:
    # Case does not matter, as in RecBole.
    return str(name).lower() in {known.lower() for known in names}


def _check_metrics(settings: Settings) -> None:
    topk = _listed(settings["topk"])
    sampled = [mode for mode in _listed(settings["eval_args"]["mode"]) if mode != "full"]
    if sampled and settings["eval_seen"] != "rank":
        raise UsageError(
            f"eval_seen is '{settings['eval_seen']}', but eval_args mode is '{sampled[0]}', whose candidates are never "
            "seen items: leave eval_seen out, or set the mode to full"
        )
    known = ranking_metrics()
    if not settings["metrics"]:
        raise UsageError(f"metrics is {settings['metrics']!r}, it must be one or more of {', '.join(known)}")
    for metric in _listed(settings["metrics"]):
        if not _is_in(metric, known):
            reason = " (it compares values, these models rank)" if _is_in(metric, metrics_dict) else ""
            hint = did_you_mean(str(metric), known)
            raise UsageError(f"metric {metric!r} is not computed{reason}: known are {', '.join(known)}.{hint}")
        if sampled and _ALL_ITEMS & _needs(metric):
            raise UsageError(f"metric '{metric}' ranks every item: use eval_args mode 'full', not '{sampled[0]}'")
    if not topk or not all(type(k) is int for k in topk):
        raise UsageError(f"topk is {settings['topk']!r}, it must be one or more whole numbers >= 1")
    check_valid_metric(settings)


def _check_columns(settings: Settings) -> None:
    fields = {key: settings[key] for key in ("USER_ID_FIELD", "ITEM_ID_FIELD", "TIME_FIELD")}
    for key, column in fields.items():
        other = next(name for name, value in fields.items() if value == column)
        if other != key:
            raise UsageError(f"{key} and {other} are both '{column}': each must name its own column")
    if settings["TIME_FIELD"] is None and "TS" in settings["eval_args"]["split"]:
        raise UsageError("TIME_FIELD is ~, but eval_args split TS needs times: name their column")
    if settings["TIME_FIELD"] is None and reads_query_time(settings):
        raise UsageError(f"TIME_FIELD is ~, but query_time {settings['query_time']} needs times: name their column")
    _check_batch_names(settings)
    for key in ("load_col", "unload_col"):
        for suffix, columns in (settings[key] or {}).items():
            if suffix not in (known := (*_FILES, *_listed(settings["additional_feat_suffix"] or []))):
                raise UsageError(f"{key} names the file '{suffix}': known are {', '.join(known)}")
            if columns != "*" and not (isinstance(columns, list) and all(isinstance(name, str) for name in columns)):
                raise UsageError(f"{key} {suffix} is {columns!r}, it must be a list of columns; ~ for {key} loads all")
    if settings["normalize_field"] and settings["normalize_all"]:
        raise UsageError("normalize_field and normalize_all are both set: leave one of them out")


def _check_training(settings: Settings) -> None:
    if settings["windows"] != "disjoint" and settings["supervision"] == "last_position":
        raise UsageError(f"windows is {settings['windows']}, but supervision is last_position: set it to all_positions")
    n, loss = settings.get("shared_negatives"), settings.get("loss_type")
    if n and loss in ("CE", "BPR"):
        raise UsageError(f"shared_negatives is {n}, it must be 0 with loss_type {loss}; SSM, gBCE and BCE may share")


def _check_sparse_updates(settings: Settings) -> None:
    """Nothing that `sparse_item_updates` excludes reads or changes all rows of the item table in a step."""
    if not settings["sparse_item_updates"]:
        return
    if settings.get("loss_type") == "CE":
        raise UsageError("sparse_item_updates is True, but loss_type CE ranks every item in each step: set SSM or BCE")
    _check_required(settings, "sparse_item_updates True", learner="adam", weight_decay=0, ema_decay=0, nproc=1)


def _check_required(settings: Settings, cause: str, **required: Any) -> None:
    """Refuse settings that are not what another one, the cause, requires."""
    for key, right in required.items():
        if settings.get(key, right) != right:
            raise UsageError(f"{key} is {settings[key]!r}, with {cause} it must be {right}")


def _check_batch_names(settings: Settings) -> None:
    """The columns of a batch have different names."""
    for key in ("NEG_PREFIX", "LIST_SUFFIX", "ITEM_LIST_LENGTH_FIELD"):
        if not settings[key]:
            raise UsageError(f"{key} is {settings[key]!r}, it must be at least one character")
    names = list(filter(None, vars(FieldNames(settings)).values()))
    for name in names:
        if names.count(name) > 1:
            raise UsageError(
                f"two columns of a batch have the name '{name}': change NEG_PREFIX, LIST_SUFFIX, "
                "ITEM_LIST_LENGTH_FIELD, or the name of the user, item or time column"
            )


def check_model(settings: Settings) -> None:
    """Check the sizes and forms of a model; a UsageError if two settings do not fit together."""
    width = settings.get("hidden_size")
    divisors = {"local_heads": settings.get("local_window"), "n_codebooks": settings.get("histogram_values") == "exact"}
    for key in (key for key, matters in divisors.items() if matters and width % settings[key]):
        raise UsageError(f"{key} is {settings[key]}, it must divide hidden_size, which is {width}")
    if settings.get("conv_width") == 1:
        raise UsageError("conv_width is 1, it must be 0 for no convolution or at least 2")
    _check_item_codes(settings)
    if not settings.get("bidirectional"):
        return
    if settings.get("supervision") == "all_positions":
        raise UsageError("bidirectional is True: a position would see its target; set supervision to last_position")
    required = {"histogram_decay": 0, "local_window": 0, "histogram_values": "codewords"}
    _check_required(settings, "bidirectional True", **required)


def _check_item_codes(settings: Settings) -> None:
    """Fixed codes exclude what needs item embeddings."""
    source = settings.get("item_codes", "learned")
    if source == "learned":
        _check_required(settings, "item_codes learned", dense_items=0)
        return
    if source not in (known := ("learned", "svd", "kmeans")) and not source.endswith((".npz", ".npy")):
        hint = did_you_mean(source, known)
        raise UsageError(f"item_codes is {source!r}, it must be {', '.join(known)} or a .npz or .npy file.{hint}")
    if source == "kmeans" and settings["item_codes_checkpoint"] is None:
        raise UsageError("item_codes is kmeans, but item_codes_checkpoint is ~: name the checkpoint of a trained model")
    required = {"quantize_items": True, "codebook_init": "xavier", "restart_dead_codewords": False}
    required |= {"reconstruction_weight": 0, "freeze_codebooks": False}
    _check_required(settings, f"item_codes {source}", **required)


def checked_negatives(negatives: Any, loss: str) -> dict[str, Any] | None:
    """`train_neg_sample_args` with values of the right types; every loss but CE needs it. See `completed`."""
    has_negatives = negatives is not None and negatives.get("distribution", "uniform") not in (None, "none")
    if loss == "CE" and has_negatives:
        raise UsageError(f"train_neg_sample_args is {negatives!r}, with loss_type CE it must be ~: CE ranks every item")
    if loss == "CE":
        return None
    if not has_negatives:
        raise UsageError(f"train_neg_sample_args is {negatives!r}, but loss_type {loss} needs it: {{sample_num: 1}}")
    if negatives.get("candidate_num", 0) == 0:  # of RecBole's dynamic negatives
        negatives = {part: value for part, value in negatives.items() if part != "candidate_num"}
    checked = _checked_parts("train_neg_sample_args", negatives)
    if checked.get("dynamic"):
        raise UsageError("train_neg_sample_args dynamic is True, which is not supported: set it to False")
    return checked


def _mixed_precision(settings: Settings, external: Settings) -> dict[str, Any]:
    """Make `amp` and RecBole's keys agree: `enable_amp` alone is bf16, with `enable_scaler` fp16."""
    enabled, scaled = bool(settings["enable_amp"]), bool(settings["enable_scaler"])
    if scaled and not enabled and "amp" not in external:
        raise UsageError("enable_scaler is True, but only fp16 needs a scaled loss: set amp to fp16 instead")
    of_recbole = ("fp16" if scaled else "bf16") if enabled else "no"
    amp = settings["amp"] if "amp" in external else of_recbole
    types = {"amp": amp, "enable_amp": amp != "no", "enable_scaler": amp == "fp16"}
    for key in ("enable_amp", "enable_scaler"):
        if key in external and bool(external[key]) != types[key]:
            raise UsageError(f"{key} is {external[key]!r}, but amp is '{amp}': leave {key} out")
    return types
