"""The entries of a checkpoint and their types. Checksums are no signature, so every file that is read is checked."""

import math
import os
from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import AfterValidator, ConfigDict, Field, TypeAdapter, ValidationError, with_config
from torch import Tensor
from torch.optim import Adam, AdamW, Optimizer
from typing_extensions import NotRequired, TypedDict  # pydantic needs it before Python 3.12

from recbole_lisa.errors import UsageError, first_mistake


def _file_name(name: str) -> str:
    if name in ("", "..") or Path(name).name != name or "\0" in name:
        raise ValueError(f"{name!r} is not the name of a file in the folder of the checkpoint")
    return name


_SMALL = 2**20
"""Bytes of a tensor that may repeat numbers of its file, as an expanded buffer of a user's model does."""


def _check_tensors(values: Any) -> None:
    """A ValueError for a tensor, anywhere in plain values, that does not hold every one of its numbers."""
    left, seen = [values], {id(values)}
    while left:
        value = left.pop()
        if isinstance(value, Tensor):
            is_dense = value.layout == torch.strided and not (value.is_quantized or value.is_nested or value.is_meta)
            if not is_dense or value.numel() * value.element_size() > max(value.untyped_storage().nbytes(), _SMALL):
                raise ValueError(f"a tensor is {value.dtype} {value.layout} on {value.device}, it must be dense")
        elif isinstance(value, dict | list | tuple):
            parts = value.values() if isinstance(value, dict) else value
            left += [part for part in parts if id(part) not in seen]
            seen.update(map(id, parts))


class _Negatives(TypedDict):
    distribution: str


class _Settings(TypedDict):
    """Settings that are read before `LISAConfig` checks all of them."""

    model: str
    dataset: str
    protocol: str
    data_path: str
    valid_metric: str
    n_layers: NotRequired[int]
    train_neg_sample_args: _Negatives


class _Generators(TypedDict):
    torch: Tensor
    cuda: list[Tensor]
    numpy: list[Any]
    python: list[Any]


class _Epoch(TypedDict, total=False):
    epoch: int
    loss: float
    parts: list[float]
    seconds: float
    sequences: int
    valid: dict[str, float]


@with_config(ConfigDict(arbitrary_types_allowed=True, strict=True))
class _Checkpoint(TypedDict, total=False):
    """Entries of one file; which of them must be there depends on its use."""

    model: str
    dataset: str
    data_fingerprint: str | None
    protocol: str
    config: _Settings
    versions: dict[str, Any]
    epoch: Annotated[int, Field(ge=-1)]
    best_file: Annotated[str, AfterValidator(_file_name)]
    cur_step: int
    best_valid_score: float
    best_valid_result: dict[str, float] | None
    best_epoch: int | None
    history: list[_Epoch]
    curve: list[dict[str, float]]
    state_dict: dict[str, Tensor]
    other_parameter: dict[str, Any] | None
    optimizer: dict[str, Any]
    scaler: dict[str, Any]
    schedule: dict[str, Any]
    average: dict[str, Any]
    rng: _Generators
    item_ids: Tensor
    latest_time: Annotated[float, Field(allow_inf_nan=False)]


_SCHEMA = TypeAdapter(_Checkpoint)


def check_entries(checkpoint: dict[str, Any], path: str | os.PathLike[str]) -> None:
    """A UsageError for the first entry of another type, or where the names of model, data set and protocol disagree."""
    try:
        _check_tensors({key: value for key, value in checkpoint.items() if key != "other_parameter"})
        _SCHEMA.validate_python(checkpoint)
    except ValueError as error:
        reason = first_mistake(error) if isinstance(error, ValidationError) else error
        raise UsageError(f"'{path}' is damaged or forged: {reason}") from error
    for key in checkpoint.keys() - {"format", *_Checkpoint.__annotations__}:
        raise UsageError(f"'{path}' is damaged or forged: it has the unknown key {key!r}")
    for key in ("model", "dataset", "protocol"):
        name, of_config = checkpoint.get(key), checkpoint.get("config", checkpoint).get(key)
        if name is not None and name != of_config:
            raise UsageError(f"'{path}' is damaged or forged: {key} is {name!r}, in its settings {of_config!r}")


def load_optimizer(optimizer: Optimizer, state: dict[str, Any]) -> None:
    """`optimizer.load_state_dict`; a ValueError where the state fits neither its settings nor its parameters."""
    settings = [{key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups]
    now = {key: value for key, value in settings[0].items() if key == "fused"}  # how steps are computed is no state
    groups = [{**group, **now} for group in state["param_groups"]]
    optimizer.load_state_dict({**state, "param_groups": groups})
    for group, right in zip(optimizer.param_groups, settings, strict=True):
        rate = group.get("lr")  # a schedule changes it
        if not isinstance(rate, float) or not 0 <= rate < math.inf:
            raise ValueError(f"lr of the optimizer is {rate!r}")
        if changed := [key for key in right if key not in group or (key != "lr" and group[key] != right[key])]:
            raise ValueError(f"{changed[0]} of the optimizer is {group.get(changed[0])!r}, not {right[changed[0]]!r}")
    names = {"step", "exp_avg", "exp_avg_sq"} if isinstance(optimizer, Adam | AdamW) else None
    for parameter, entries in optimizer.state.items():
        names = entries.keys() if names is None else names
        if entries.keys() != names:
            raise ValueError(f"the optimizer has {', '.join(entries)} of a parameter, not {', '.join(sorted(names))}")
        for name, x in entries.items():
            if (x is None and name == "momentum_buffer") or (name == "step" and type(x) is int and x >= 0):
                continue
            shape = () if name == "step" else tuple(parameter.shape)
            is_fit = isinstance(x, Tensor) and x.shape == shape and bool(x.isfinite().all())
            if not is_fit or (name in ("step", "exp_avg_sq") and bool((x < 0).any())):
                is_now = tuple(x.shape) if isinstance(x, Tensor) and x.dim() else repr(x)
                raise ValueError(f"{name} of the optimizer is {is_now}, it must be finite numbers {shape}")
