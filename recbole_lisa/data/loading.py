"""The steps of RecBole's loading that are replaced: reading a file, numbering tokens, filling missing values.

RecBole's keys keep their meaning. What changes: categories instead of one Python string per cell, errors instead of
warnings for settings that cannot be read, and missing values that are filled under every version of pandas.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from recbole.data.dataset import Dataset
from recbole.utils import FeatureSource, FeatureType

from recbole_lisa.data import atomic
from recbole_lisa.errors import UsageError, did_you_mean

# In the default of load_col, also for files that name these columns in another way.
_DEFAULT_COLUMNS = ("user_id", "item_id", "timestamp")
_SEQUENCES = (FeatureType.TOKEN_SEQ, FeatureType.FLOAT_SEQ)
PART = "part of benchmark_filename"
"""Column of pre-split interactions: 0 for training, 1 for validation, 2 for test."""


def load_columns(dataset: Dataset, filepath: str | Path, source: FeatureSource | str) -> pd.DataFrame | None:
    """Read the columns of a file that `choose_columns` names; None where there is none."""
    path, is_interactions = Path(filepath), source == FeatureSource.INTERACTION
    fields = choose_columns(dataset, path, source)
    if not fields:
        return None
    stored: atomic.Stored = "category" if is_interactions else "object"
    frame = atomic.read_columns(path, fields, reading_of(dataset.config), tokens=stored)
    if is_interactions and fields.get(dataset.time_field) == "float":
        check_times(path, frame[dataset.time_field])
    described = {FeatureSource.USER: dataset.uid_field, FeatureSource.ITEM: dataset.iid_field}.get(source)
    if described and (repeated := int(frame[described].dropna().duplicated().sum())):
        dataset.logger.warning(f"{path}: {repeated} rows repeat an earlier {described}: the first row of each is kept")
    for name, kind in fields.items():
        register(dataset, frame, name, FeatureType(kind), source)
    return frame


def reading_of(config: Any) -> atomic.Reading:
    """How the atomic files of a run are read."""
    separator = config["field_separator"].replace("\\t", "\t")  # as it comes from a command line
    encoding = config["encoding"] or "utf-8"  # RecBole itself has no default
    return atomic.Reading(separator, encoding, config["seq_separator"], bool(config["show_progress"]))


def choose_columns(dataset: Dataset, path: Path, source: FeatureSource | str) -> dict[str, str]:
    """The columns of a file that `load_col` and `unload_col` leave, by name, and their types.

    The user, the item and the time of an interaction are always read, and the id of a user's or an item's features.

    Raises:
        UsageError: The file cannot be read, lacks a column that is named, or has no user or no item.
    """
    loaded, unloaded = dataset._get_load_and_unload_col(source)
    user, item = ("USER_ID_FIELD", dataset.uid_field), ("ITEM_ID_FIELD", dataset.iid_field)
    of_files = {FeatureSource.INTERACTION: (user, item), FeatureSource.USER: (user,), FeatureSource.ITEM: (item,)}
    ids = of_files.get(source, ())
    named = {"load_col": {*(loaded or ())} - {*_DEFAULT_COLUMNS}, "unload_col": {*(unloaded or ())}}
    if loaded is not None:
        times = (dataset.time_field,) if source == FeatureSource.INTERACTION else ()
        loaded = {*loaded, *times, *(name for _, name in ids)}
    reading = reading_of(dataset.config)
    header = atomic.read_header(path, reading.separator, reading.encoding)
    columns = ", ".join(f"{column}:{kind}" for column, kind in header.items())
    for key, unknown in ((key, sorted(names - {*header})) for key, names in named.items()):
        if unknown:
            raise UsageError(f"{key} names {unknown[0]!r}, but {path} has {columns}.{did_you_mean(unknown[0], header)}")
    _check_lists(dataset, path, header)
    names = [name for name in header if (loaded is None or name in loaded) and name not in (unloaded or ())]
    fields = {name: header[name] for name in names}
    for key, name in ids:
        if fields.get(name) != "token":
            raise UsageError(f"{path} has no column {name}:token ({key}), or unload_col names it; it has {columns}")
    return fields


def _check_lists(dataset: Dataset, path: Path, header: dict[str, str]) -> None:
    """Refuse pre-split files with histories in a list column."""
    listed = f"{dataset.iid_field}{dataset.config['LIST_SUFFIX']}"
    if dataset.config["benchmark_filename"] is not None and header.get(listed) == "token_seq":
        raise UsageError(
            f"{path} has histories in the column {listed}: this run takes rows of user, item and time; for lists call "
            "recbole_lisa.register() and RecBole's own functions"
        )


def check_times(path: Path, times: pd.Series[Any], n_before: int = 0) -> None:
    """Refuse an infinite time; `n_before` rows of the file are above these (rows,)."""
    infinite = np.flatnonzero(np.isinf(times))
    if len(infinite):
        raise UsageError(
            f"{path}, row {n_before + infinite[0] + 1} below the header: the column {times.name} must hold finite "
            f"numbers, got {times.iloc[infinite[0]]}"
        )


def register(dataset: Dataset, frame: pd.DataFrame, name: str, kind: FeatureType, source: FeatureSource | str) -> None:
    """Register a column as RecBole does; sequences are cut to `seq_len`."""
    longest = 1
    if kind in _SEQUENCES:
        limit = (dataset.config["seq_len"] or {}).get(name)
        frame[name] = frame[name].map(lambda cell: cell[:limit])
        longest = max(map(len, frame[name]), default=0)
    if source != "link":  # RecBole describes the columns of a link file elsewhere
        dataset.set_field_property(name, kind, source, longest)
    if kind in (FeatureType.FLOAT, FeatureType.FLOAT_SEQ):
        dataset.field2bucketnum[name] = 2


def register_part(dataset: Dataset, files: Sequence[Path], columns: Sequence[Iterable[str]]) -> None:
    """Register PART where there are several files; other columns than in the first one are a UsageError."""
    for path, names in zip(files, columns, strict=True):
        if list(names) != list(columns[0]):
            raise UsageError(f"{path} has other columns than {files[0]}: {', '.join(names)}")
    if len(files) > 1:
        dataset.set_field_property(PART, FeatureType.FLOAT, FeatureSource.INTERACTION, 1)
        dataset.field2bucketnum[PART] = 2


def number_tokens(dataset: Dataset, columns: list[tuple[pd.DataFrame, str, FeatureType]]) -> None:
    """Number the tokens of columns that share one numbering from 1 in order of appearance; 0 is padding.

    A token that is spelled like padding has its own number.
    """
    tokens = [_tokens(frame[field]) for frame, field, _ in columns]
    alone = tokens[0] if len(tokens) == 1 else np.concatenate([np.asarray(part, object) for part in tokens])
    ids, texts = pd.factorize(alone)
    names = np.array(["[PAD]", *texts], dtype=object)  # fixed widths would be those of the longest token
    parts = np.split(ids + 1, np.cumsum([len(part) for part in tokens])[:-1])
    for (frame, field, kind), part in zip(columns, parts, strict=True):
        dataset.field2id_token[field] = names
        dataset.field2token_id[field] = {token: number for number, token in enumerate(names)}
        if kind == FeatureType.TOKEN_SEQ:
            cells = np.split(part, np.cumsum([len(cell) for cell in frame[field]])[:-1])
            frame[field] = pd.Series(cells, index=frame.index, dtype=object)
        else:
            frame[field] = part.astype(np.int32 if frame is dataset.inter_feat else np.int64)


def _tokens(column: pd.Series[Any]) -> Any:
    """The tokens of a column in order: as they are stored, or those of all its cells when it holds sequences."""
    if isinstance(column.dtype, pd.CategoricalDtype):
        return column.array
    cells = column.to_numpy(dtype=object)
    holds_sequences = len(cells) and isinstance(cells[0], np.ndarray)
    return np.concatenate(cells) if holds_sequences else cells


def filled(column: pd.Series[Any], kind: FeatureType) -> pd.Series[Any]:
    """Fill missing tokens with padding, numbers with the column's mean, sequences with nothing."""
    if kind in _SEQUENCES:
        empty = np.array([], dtype=np.int64 if kind == FeatureType.TOKEN_SEQ else np.float64)
        return column.map(lambda cell: empty if isinstance(cell, float) else cell)
    if not column.isna().any():
        return column
    return column.fillna(0).astype(np.int64) if kind == FeatureType.TOKEN else column.fillna(column.mean())
