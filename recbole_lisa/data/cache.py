"""A data set saved after loading and filtering, so that the next run need not parse its text again.

The file's name and its content carry a key: a hash of the bytes of the atomic file and of every setting that shapes
what is loaded. Other data or other such settings make another key, and the data set is built anew. Settings that
shape batches (`train_batch_size`, `MAX_ITEM_LIST_LENGTH`, the split ...) are not part of it.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from logging import getLogger
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from recbole.config import Config
from recbole.utils import FeatureSource, FeatureType, dataset_arguments

from recbole_lisa import __version__
from recbole_lisa.data.loading import set_tokens
from recbole_lisa.datasets.obtain import interaction_files
from recbole_lisa.errors import UsageError
from recbole_lisa.files import atomic_writer
from recbole_lisa.progress import progress_bar

_FORMAT = "recbole-lisa data set 1"
# Of RecBole's keys of data sets, those that only name columns of batches or bound windows.
_LATE = {"NEG_PREFIX", "ITEM_LIST_LENGTH_FIELD", "LIST_SUFFIX", "MAX_ITEM_LIST_LENGTH", "POSITION_FIELD"}
_SHAPING = [*(set(dataset_arguments) - _LATE), "encoding", "discretization", "numerical_features"]
_BLOCK_BYTES = 2**20


@dataclass(frozen=True)
class DatasetCache:
    """The place of one saved data set."""

    path: Path  # the file; it may not exist
    key: str  # what a file must carry to be this data set

    @classmethod
    def of(cls, config: Config) -> DatasetCache | None:
        """The cache at `dataset_save_path`, or with `save_dataset` one in `checkpoint_dir`; else None."""
        named = config["dataset_save_path"]
        if not named and not config["save_dataset"]:
            return None
        key = dataset_key(config)
        return cls(Path(named or Path(config["checkpoint_dir"], f"{config['dataset']}-{key[:16]}.dataset")), key)

    def read(self) -> dict[str, Any] | None:
        """What was saved, or None when there is nothing, or something of other data or settings.

        A file of another kind, or a damaged one, is left as it is: a UsageError.
        """
        if not self.path.is_file():
            return None
        try:
            stored = torch.load(self.path, map_location="cpu", weights_only=True)
        except Exception as error:  # noqa: BLE001 - torch raises whatever the broken bytes lead to
            raise self._foreign() from error
        if not isinstance(stored, dict) or stored.get("format") != _FORMAT:
            raise self._foreign()
        if stored["key"] != self.key:
            getLogger().info(f"'{self.path}' is of other data or settings and is written anew")
            return None
        getLogger().info(f"data set read from '{self.path}'")
        return stored

    def _foreign(self) -> UsageError:
        return UsageError(
            f"dataset_save_path '{self.path}' is not a saved data set, or is damaged: name another file, or delete it"
        )

    def write(self, state: dict[str, Any]) -> None:
        """Save tensors and plain values under this key, complete or not at all; a UsageError if that fails."""
        try:
            with atomic_writer(self.path) as stream:
                torch.save({"format": _FORMAT, "key": self.key, **state}, stream)
        except OSError as error:
            raise UsageError(f"the data set cannot be saved to '{self.path}': {error.strerror or error}") from error
        getLogger().info(f"data set saved to '{self.path}'")


def dataset_state(dataset: Any) -> dict[str, Any]:
    """The interactions and the numbering of a loaded data set, as tensors and plain values.

    Features of users or items, and columns of sequences, are not saved: a UsageError.
    """
    sequences = [kind for kind in dataset.field2type.values() if kind.value.endswith("_seq")]
    if dataset.feat_name_list != ["inter_feat"] or sequences:
        raise UsageError(
            f"save_dataset keeps interactions alone, and {dataset.dataset_name} also has features of users or items, "
            "or sequences: narrow load_col, or leave save_dataset out"
        )
    return {
        "columns": {name: torch.from_numpy(column.to_numpy(copy=True)) for name, column in dataset.inter_feat.items()},
        "tokens": {str(name): list(map(str, tokens[1:])) for name, tokens in dataset.field2id_token.items()},
        "types": {name: kind.value for name, kind in dataset.field2type.items()},
        "sources": {name: FeatureSource(source).value for name, source in dataset.field2source.items()},
        "lengths": {name: int(length) for name, length in dataset.field2seqlen.items()},
        "buckets": {name: int(count) for name, count in dataset.field2bucketnum.items()},
    }


def restore_dataset(dataset: Any, state: dict[str, Any]) -> None:
    """Give a data set, whose settings are read and whose files are not, what `dataset_state` took."""
    dataset.inter_feat = pd.DataFrame({name: column.numpy() for name, column in state["columns"].items()})
    dataset.user_feat = dataset.item_feat = None
    dataset.feat_name_list = ["inter_feat"]
    dataset.field2type = {name: FeatureType(kind) for name, kind in state["types"].items()}
    dataset.field2source = {name: FeatureSource(source) for name, source in state["sources"].items()}
    dataset.field2seqlen, dataset.field2bucketnum = state["lengths"], state["buckets"]
    for name, tokens in state["tokens"].items():
        set_tokens(dataset, name, tokens)


def dataset_key(config: Config) -> str:
    """A hash of the atomic file and of every setting that shapes what is loaded."""
    digest = hashlib.sha256(f"{_FORMAT} {__version__}".encode())
    settings = {name: config[name] for name in sorted(_SHAPING)}
    digest.update(json.dumps(settings, sort_keys=True, default=str).encode())
    # With features beside them nothing is saved, so that the interactions are all that counts.
    options: dict[str, Any] = {"unit": "B", "show_progress": bool(config["show_progress"])}
    for path in interaction_files(config):
        bar = progress_bar(description=f"hash of {path.name}", total=path.stat().st_size, **options)
        with path.open("rb") as stream, bar:
            while block := stream.read(_BLOCK_BYTES):
                digest.update(block)
                bar.update(len(block))
    return digest.hexdigest()
