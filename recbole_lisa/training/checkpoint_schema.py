"""The entries of a checkpoint and their types. Checksums are no signature, so every file that is read is checked."""

import os
from typing import Any

from pydantic import ConfigDict, TypeAdapter, ValidationError, with_config
from torch import Tensor
from typing_extensions import NotRequired, TypedDict  # pydantic needs it before Python 3.12

from recbole_lisa.errors import UsageError, first_mistake


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


@with_config(ConfigDict(arbitrary_types_allowed=True, strict=True))
class _Checkpoint(TypedDict, total=False):
    """Entries of one file; which of them must be there depends on its use."""

    model: str
    dataset: str
    data_fingerprint: str | None
    protocol: str
    config: _Settings
    versions: dict[str, Any]
    epoch: int
    best_file: str
    cur_step: int
    best_valid_score: float
    best_valid_result: dict[str, Any] | None
    best_epoch: int | None
    history: list[dict[str, Any]]
    curve: list[dict[str, Any]]
    state_dict: dict[str, Tensor]
    other_parameter: dict[str, Any] | None
    optimizer: dict[str, Any]
    scaler: dict[str, Any]
    schedule: dict[str, Any]
    average: dict[str, Any]
    rng: _Generators
    item_ids: Tensor


_SCHEMA = TypeAdapter(_Checkpoint)


def check_entries(checkpoint: dict[str, Any], path: str | os.PathLike[str]) -> None:
    """A UsageError for the first entry of another type, or where the names of model, data set and protocol disagree."""
    try:
        _SCHEMA.validate_python(checkpoint)
    except ValidationError as error:
        raise UsageError(f"'{path}' is damaged or forged: {first_mistake(error)}") from error
    for key in checkpoint.keys() - {"format", *_Checkpoint.__annotations__}:
        raise UsageError(f"'{path}' is damaged or forged: it has the unknown key {key!r}")
    for key in ("model", "dataset", "protocol"):
        name, of_config = checkpoint.get(key), checkpoint.get("config", checkpoint).get(key)
        if name is not None and name != of_config:
            raise UsageError(f"'{path}' is damaged or forged: {key} is {name!r}, in its settings {of_config!r}")
