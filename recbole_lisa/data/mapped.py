"""A data set saved as arrays: for files that do not fit in memory, for later runs, and for several processes.

The result is a folder of .npy files and a manifest, which is renamed to its place once it is complete.
`preparation.py` writes it.
"""

from __future__ import annotations

import json
import shutil
import zlib
from dataclasses import dataclass
from logging import getLogger
from pathlib import Path
from typing import Any

import numpy as np
from recbole.utils import FeatureSource, FeatureType

from recbole_lisa.data import atomic
from recbole_lisa.data.cache import FORMAT, check_arrays, dataset_key, dataset_state
from recbole_lisa.data.histories import Histories
from recbole_lisa.data.loading import reading_of
from recbole_lisa.data.preparation import ROLES, write_arrays
from recbole_lisa.data.tokens import Tokens
from recbole_lisa.datasets.obtain import interaction_files
from recbole_lisa.errors import UsageError
from recbole_lisa.files import locked, resolved, temporary_path

AUTO_BYTES = 2**30
"""`memory_map: auto` maps files from this size on."""
CHECKED_BYTES = 2**26
"""A mapped array has its checksum and its numbers checked up to this size; one that is read, always."""
_MANIFEST = "manifest.json"
_ARRAYS = {"offsets", "items", "gaps", "times", *(f"{role}_{part}" for role in ROLES for part in ("text", "ends"))}
_KEYS = {"format", "key", "arrays", "types", "sources", "lengths", "buckets"}


@dataclass(frozen=True)
class MappedFolder:
    """The place of one saved data set."""

    path: Path  # it may not exist
    key: str  # see `dataset_key`
    is_mapped: bool  # or read into memory

    @classmethod
    def of(cls, config: Any) -> MappedFolder | None:
        """The folder of a run: with `save_dataset`, `dataset_save_path`, or where `memory_map` says so; else None.

        Raises:
            UsageError: The settings ask for it, and the data set has something that is not saved.
        """
        named, setting, files = config["dataset_save_path"], config["memory_map"], interaction_files(config)
        is_saved = named or config["save_dataset"]
        is_large = setting == "auto" and sum(path.stat().st_size for path in files) >= AUTO_BYTES
        if not is_saved and not is_large and setting is not True:
            return None
        if reason := _obstacle(config, files[0]):
            if is_saved or setting is True:
                name = "save_dataset or dataset_save_path" if is_saved else "memory_map"
                raise UsageError(f"{name} is set, but {reason}: change that, or leave {name} out")
            getLogger().info(f"memory_map: auto leaves the data in memory, as {reason}")
            return None
        key = dataset_key(config)
        path = Path(named or Path(config["checkpoint_dir"], f"{config['dataset']}-{key[:16]}.dataset"))
        return cls(resolved(path) if path.is_symlink() else path, key, bool(setting))

    def read(self) -> dict[str, Any] | None:
        """`dataset_state` with histories, times and tokens in mapped arrays; None where nothing or other data is there.

        Raises:
            UsageError: The path has another kind of file, or a damaged data set; both are left as they are.
        """
        if not self.path.exists() or (self.path.is_dir() and not any(self.path.iterdir())):
            return None
        try:
            state: dict[str, Any] = json.loads((self.path / _MANIFEST).read_bytes())
            if not str(state["format"]).startswith("recbole-lisa"):
                raise ValueError("its manifest is of another program")
            if state["key"] != self.key:  # an earlier format has another key, too
                own = {_MANIFEST, *(f"{name}.npy" for name in _ARRAYS | {"parts"})}
                if other := sorted({path.name for path in self.path.iterdir() if not path.match("svd*-*.npz")} - own):
                    raise ValueError(f"it holds {other[0]}, which would be lost")
                return None
            if state["format"] != FORMAT or state.keys() != _KEYS or state["arrays"].keys() - {"parts"} != _ARRAYS:
                raise ValueError(f"{_MANIFEST} has another format or other keys")
            _ = [*map(FeatureType, state["types"].values()), *map(FeatureSource, state["sources"].values())]
            if {*state["lengths"].values()} > {1} or not all(type(n) is int for n in state["buckets"].values()):
                raise ValueError(f"{_MANIFEST} has other lengths or buckets")
            files = {name: self.path / f"{name}.npy" for name in state["arrays"]}
            checked = {name for name, (n, _) in state["arrays"].items() if n <= CHECKED_BYTES or not self.is_mapped}
            for name, path in files.items():
                n_bytes, checksum = state["arrays"][name]
                if path.stat().st_size != n_bytes or (name in checked and _checksum(path) != checksum):
                    raise ValueError(f"{path.name} has another size or checksum")
            mode: Any = "r" if self.is_mapped else None
            arrays = {name: np.load(path, mmap_mode=mode).view(np.ndarray) for name, path in files.items()}
            check_arrays(arrays, checked)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise UsageError(
                f"'{self.path}' is not a saved data set, or is damaged ({error}): name another folder in "
                "dataset_save_path"
            ) from error
        getLogger().info(f"data set {'mapped' if self.is_mapped else 'read'} from '{self.path}'")
        users = np.arange(1, len(arrays["offsets"]), dtype=np.int64)
        state["histories"] = Histories(arrays["items"], arrays["gaps"], arrays["offsets"], users)
        state |= {"times": arrays["times"], "parts": arrays.get("parts")}
        state["ids"] = [Tokens(arrays[f"{role}_text"], arrays[f"{role}_ends"]) for role in ROLES]
        return state

    def prepare(self, dataset: Any) -> dict[str, Any] | None:
        """Read, filter and sort the interactions of a data set, whose settings are read and whose files are not.

        Where another process prepares the folder, this one waits for its end, and reads what that one has written.

        Raises:
            UsageError: Something in the file or in the settings is wrong, or the disk is full.
        """
        temporary, lock = temporary_path(self.path), self.path.with_name(f".{self.path.name}.lock")
        try:
            temporary.mkdir(parents=True)
            with locked(lock, waiting=f"another process prepares '{self.path}': this one waits for its end"):
                if (state := self.read()) is not None:
                    return state
                write_arrays(dataset, temporary)
                arrays = {path.stem: [path.stat().st_size, _checksum(path)] for path in temporary.glob("*.npy")}
                state = {"format": FORMAT, "key": self.key, "arrays": arrays, **dataset_state(dataset)}
                (temporary / _MANIFEST).write_text(json.dumps(state), encoding="utf-8")
                if self.path.exists():
                    if any(self.path.iterdir()):
                        getLogger().info(f"'{self.path}' is of other data or settings and is written anew")
                    shutil.rmtree(self.path)
                temporary.rename(self.path)
                return None
        except OSError as error:
            raise UsageError(
                f"the data set cannot be saved to '{self.path}': {error.strerror or error}; preparing it takes about "
                "twice the size of the .inter file there"
            ) from error
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


def _checksum(path: Path) -> int:
    return zlib.crc32(np.memmap(path, np.uint8, mode="r").data)


def _obstacle(config: Any, path: Path) -> str | None:
    """What a saved data set cannot hold of this one."""
    for features in (Path(config["data_path"], f"{config['dataset']}.{kind}") for kind in ("user", "item")):
        if features.is_file() and (config["load_col"] is None or features.suffix[1:] in config["load_col"]):
            return f"load_col reads {features}"
    reading, time = reading_of(config), config["TIME_FIELD"]
    header = atomic.read_header(path, reading.separator, reading.encoding)
    loaded = header if config["load_col"] is None else config["load_col"].get("inter") or ()
    if sequences := [name for name, kind in header.items() if name in loaded and kind.endswith("_seq")]:
        return f"the column {sequences[0]} holds sequences"
    return f"{path} has no column {time}:float" if time and header.get(time) != "float" else None
