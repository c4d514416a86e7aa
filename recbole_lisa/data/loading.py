"""RecBole's loading of atomic files, with the slow and the inexact steps replaced.

RecBole's own keys keep their meaning. What changes: pandas' C reader and categories instead of one Python string
per cell, array arithmetic instead of Counters, errors instead of warnings for settings that cannot be read, and
missing values that are filled under every version of pandas.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from recbole.config import Config
from recbole.utils import FeatureSource, FeatureType

from recbole_lisa.config.data_checks import PRESPLIT
from recbole_lisa.data import atomic
from recbole_lisa.data.filtering import FilteredDataset
from recbole_lisa.datasets.obtain import missing_data
from recbole_lisa.errors import UsageError


class AtomicDataset(FilteredDataset):
    """The interactions that RecBole's keys select, as a frame of small integers and exact times.

    Args:
        config: The run's configuration.

    Raises:
        UsageError: Something in the configuration or in the files is wrong.
    """

    def __init__(self, config: Config) -> None:
        if config["benchmark_filename"] is not None:
            raise UsageError(PRESPLIT)
        super().__init__(config)

    def _load_data(self, token: str, dataset_path: str) -> None:
        """Load all files; never download: RecBole's addresses are dead, and half a folder would be left."""
        path = Path(dataset_path, f"{token}.inter")
        if not path.is_file():
            raise UsageError(missing_data(self.config))
        super()._load_data(token, dataset_path)

    def _load_feat(self, filepath: str, source: FeatureSource | str) -> pd.DataFrame | None:
        """Read the columns that `load_col` and `unload_col` leave, and note their types."""
        wanted, unwanted = self._get_load_and_unload_col(source)
        path = Path(filepath)
        separator = self.config["field_separator"].replace("\\t", "\t")  # as it comes from a command line
        encoding = self.config["encoding"] or "utf-8"  # RecBole itself has no default
        fields = {
            name: kind
            for name, kind in atomic.read_header(path, separator, encoding).items()
            if (wanted is None or name in wanted) and name not in (unwanted or ())
        }
        if source == FeatureSource.INTERACTION:
            self._check_ids(path, fields)
        if not fields:
            return None
        frame = atomic.read_columns(
            path,
            fields,
            separator=separator,
            encoding=encoding,
            seq_separator=self.config["seq_separator"],
            tokens="category" if source == FeatureSource.INTERACTION else "object",
        )
        for name, kind in fields.items():
            self._note_field(frame, name, FeatureType(kind), source)
        return frame

    def _check_ids(self, path: Path, fields: dict[str, str]) -> None:
        for key, name in (("USER_ID_FIELD", self.uid_field), ("ITEM_ID_FIELD", self.iid_field)):
            if fields.get(name) != "token":
                loaded = ", ".join(f"{column}:{kind}" for column, kind in fields.items()) or "nothing"
                raise UsageError(f"{path} gives no column {name}:token ({key}); load_col leaves {loaded}")

    def _note_field(self, frame: pd.DataFrame, name: str, kind: FeatureType, source: FeatureSource | str) -> None:
        """Register a column as RecBole does; sequences are cut to `seq_len`."""
        longest = 1
        if kind in (FeatureType.TOKEN_SEQ, FeatureType.FLOAT_SEQ):
            limit = (self.config["seq_len"] or {}).get(name)
            frame[name] = frame[name].map(lambda cell: cell[:limit])
            longest = max(map(len, frame[name]), default=0)
        if source != "link":  # RecBole describes the columns of a link file elsewhere
            self.set_field_property(name, kind, source, longest)
        if kind in (FeatureType.FLOAT, FeatureType.FLOAT_SEQ):
            self.field2bucketnum[name] = 2

    def _reset_index(self) -> None:
        for name in self.feat_name_list:
            setattr(self, name, getattr(self, name).reset_index(drop=True))

    def _remap(self, remap_list: list[tuple[pd.DataFrame, str, FeatureType]]) -> None:
        """Number the tokens of columns that share one numbering from 1 in order of appearance; 0 is padding."""
        columns = [_tokens(frame[field]) for frame, field, _ in remap_list]
        alone = columns[0] if len(columns) == 1 else np.concatenate([np.asarray(part, object) for part in columns])
        ids, tokens = pd.factorize(alone)
        parts = np.split(ids + 1, np.cumsum([len(column) for column in columns])[:-1])
        for (frame, field, kind), part in zip(remap_list, parts, strict=True):
            self.set_tokens(field, tokens)
            if kind == FeatureType.TOKEN_SEQ:
                cells = np.split(part, np.cumsum([len(cell) for cell in frame[field]])[:-1])
                frame[field] = pd.Series(cells, index=frame.index, dtype=object)
            else:
                frame[field] = part.astype(np.int32 if frame is self.inter_feat else np.int64)

    def set_tokens(self, field: str, tokens: Iterable[str]) -> None:
        """Number the tokens of a column from 1 in the given order; one spelled like padding has its own number."""
        names = np.array(["[PAD]", *tokens], dtype=object)  # fixed widths would be those of the longest token
        self.field2id_token[field] = names
        self.field2token_id[field] = {token: number for number, token in enumerate(names)}

    def _fill_nan(self) -> None:
        """Fill missing tokens with padding, numbers with the column's mean, sequences with nothing."""
        for name in self.feat_name_list:
            frame = getattr(self, name)
            for field in frame:
                frame[field] = self._filled(frame[field], self.field2type[field])

    def _filled(self, column: pd.Series[Any], kind: FeatureType) -> pd.Series[Any]:
        if kind in (FeatureType.TOKEN_SEQ, FeatureType.FLOAT_SEQ):
            empty = np.array([], dtype=np.int64 if kind == FeatureType.TOKEN_SEQ else np.float64)
            return column.map(lambda cell: empty if isinstance(cell, float) else cell)
        missing = int(column.isna().sum())
        if not missing:
            return column
        if kind == FeatureType.TOKEN:
            return column.fillna(0).astype(np.int64)
        if column.name == self.time_field:
            self.logger.warning(f"{missing} rows without {column.name} are ordered as if at the mean time")
        return column.fillna(column.mean())

    def _normalize(self) -> None:
        """Normalise as RecBole does, but leave times in seconds."""
        times = self.inter_feat.get(self.time_field)
        super()._normalize()
        if times is not None:
            self.inter_feat[self.time_field] = times

    def _change_feat_format(self) -> None:
        """Turn user and item features into tensors as RecBole does; interactions stay columns, and exact."""
        for name in self.feat_name_list:
            if name != "inter_feat" and isinstance(getattr(self, name), pd.DataFrame):
                setattr(self, name, self._dataframe_to_interaction(getattr(self, name)))


def _tokens(column: pd.Series[Any]) -> Any:
    """The tokens of a column in order: as they are stored, or those of all its cells when it holds sequences."""
    if isinstance(column.dtype, pd.CategoricalDtype):
        return column.array
    cells = column.to_numpy(dtype=object)
    holds_sequences = len(cells) and isinstance(cells[0], np.ndarray)
    return np.concatenate(cells) if holds_sequences else cells
