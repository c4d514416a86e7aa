"""Checks of the settings of a data set before it is read: at most the names of files are looked at."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from recbole_lisa.data.atomic import parse_intervals
from recbole_lisa.datasets.obtain import MissingDataError, RawData
from recbole_lisa.errors import UsageError, did_you_mean

_INTERVALS = ("user_inter_num_interval", "item_inter_num_interval")
PRESPLIT = (
    "benchmark_filename is not supported here: give one .inter file and set eval_args split. RecBole's own pipeline "
    "takes it: call recbole_lisa.register() and RecBole's functions"
)
_FORM = "tab-separated lines under the header user_id:token item_id:token timestamp:float"


def check_reading(settings: Mapping[str, Any]) -> None:
    """Check how the files are to be read and filtered.

    Raises:
        UsageError: The encoding or the separator is none, an interval is malformed, or the columns to leave
            out stand beside the columns to load.
    """
    encoding = settings["encoding"]
    try:
        "".encode(encoding)
    except (LookupError, ValueError) as error:
        raise UsageError(f"encoding is '{encoding}', it must be a text encoding, such as utf-8 or latin-1") from error
    for key in ("field_separator", "seq_separator"):
        if not settings[key]:
            raise UsageError(f"{key} is {settings[key]!r}, it must be at least one character")
    for key in _INTERVALS:
        parse_intervals(key, settings[key])
    if settings["unload_col"] and settings["load_col"]:
        raise UsageError(
            f"unload_col is {settings['unload_col']!r}, but load_col already says what to load, "
            f"{settings['load_col']!r}: set load_col to ~ or leave unload_col out"
        )


def check_dataset_file(dataset: str, settings: Mapping[str, Any], known: list[str]) -> None:
    """Check that the interactions are on disk, so that a missing file costs seconds and leaves no folder.

    Args:
        dataset: Name of the data set.
        settings: The merged settings; `data_path` already ends in the data set's folder.
        known: Names of the data sets that have a yaml file.

    Raises:
        MissingDataError: The file is missing; the message says which, where it goes and how to make it.
        UsageError: A setting is not supported.
    """
    folder = Path(settings["data_path"])
    wanted = folder / f"{dataset}.inter"
    if settings["benchmark_filename"] is not None:
        raise UsageError(PRESPLIT)
    if wanted.is_file():
        return
    raw = RawData.from_settings(dataset, folder, settings) if dataset in known else None
    if raw is None:
        hint = did_you_mean(dataset, [*known, *_beside(folder)])
        message = (
            f"there is no file {wanted} ({_FORM}), and '{dataset}' is none of the data sets with settings "
            f"({', '.join(known)}): put it there or name the folder above it with --data_path.{hint}"
        )
    else:
        message = (
            f"data set '{dataset}' needs the file {wanted}, which does not exist: {raw.by_hand} "
            f"(or write the file yourself: {_FORM}; or name the folder above: --data_path)"
        )
    raise MissingDataError(
        message, raw=raw, may_download=bool(settings["download"]), show_progress=bool(settings["show_progress"])
    )


def _beside(folder: Path) -> list[str]:
    """Names of the data sets in the folders beside this one."""
    try:
        return sorted(place.name for place in folder.parent.iterdir() if (place / f"{place.name}.inter").is_file())
    except OSError:
        return []
