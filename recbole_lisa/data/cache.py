"""The key of a saved data set, its columns, and the check of its arrays.

The key is a hash of the bytes of the atomic file and of every setting that shapes what is loaded. Other data or other
such settings make another key, and the data set is built anew. Settings that shape batches (`train_batch_size`,
`MAX_ITEM_LIST_LENGTH`, the split ...) are not part of it.
"""

import hashlib
import json
from collections.abc import Mapping, Set
from typing import Any

import numpy as np
import numpy.typing as npt
from recbole.config import Config
from recbole.utils import FeatureSource, FeatureType, dataset_arguments

from recbole_lisa import __version__
from recbole_lisa.data.tokens import ENCODING
from recbole_lisa.datasets.obtain import interaction_files
from recbole_lisa.progress import progress_bar

FORMAT = "recbole-lisa data set 3"
# Of RecBole's keys of data sets, those that only name columns of batches or bound windows.
_LATE = {"NEG_PREFIX", "ITEM_LIST_LENGTH_FIELD", "LIST_SUFFIX", "MAX_ITEM_LIST_LENGTH", "POSITION_FIELD"}
_SHAPING = [*(set(dataset_arguments) - _LATE), "encoding", "discretization", "numerical_features"]
_BLOCK_BYTES = 2**20
_KINDS = {"offsets": "<i8", "ends": "<i8", "items": "<i4", "gaps": "<f4", "times": "<f8", "parts": "|u1", "text": "|u1"}
_MOST = np.finfo(np.float64).max


def dataset_state(dataset: Any) -> dict[str, Any]:
    """The columns of a loaded data set, as plain values."""
    return {
        "types": {name: kind.value for name, kind in dataset.field2type.items()},
        "sources": {name: FeatureSource(source).value for name, source in dataset.field2source.items()},
        "lengths": {name: int(length) for name, length in dataset.field2seqlen.items()},
        "buckets": {name: int(count) for name, count in dataset.field2bucketnum.items()},
    }


def restore_dataset(dataset: Any, state: dict[str, Any]) -> None:
    """Give a data set, whose settings are read and whose files are not, what `dataset_state` took."""
    dataset.user_feat = dataset.item_feat = None
    dataset.feat_name_list = ["inter_feat"]
    dataset.field2type = {name: FeatureType(kind) for name, kind in state["types"].items()}
    dataset.field2source = {name: FeatureSource(source) for name, source in state["sources"].items()}
    dataset.field2seqlen, dataset.field2bucketnum = state["lengths"], state["buckets"]


def check_arrays(arrays: Mapping[str, npt.NDArray[Any]], checked: Set[str]) -> None:
    """Raise a ValueError where saved arrays do not fit each other, whatever their checksums are.

    Kinds and sizes are checked of all. Only arrays named in `checked` are read: a range of each number, and places in
    order. So an array too large for that is trusted.
    """
    n_rows, n_users, n_items = (arrays[name].size for name in ("items", "user_ends", "item_ends"))
    sizes = {"offsets": n_users + 1, "gaps": n_rows, "times": n_rows, "parts": n_rows}
    for name, array in arrays.items():
        kind = _KINDS.get(name.rpartition("_")[2], "")
        if array.dtype != np.dtype(kind) or array.shape != (sizes.get(name, array.size),):
            raise ValueError(f"{name}.npy has {array.dtype} {array.shape}")
    ends = {"offsets": n_rows, **{f"{role}_ends": arrays[f"{role}_text"].size for role in ("user", "item")}}
    for name in arrays.keys() & checked:
        numbers = arrays[name]
        low, high = {"items": (1, n_items), "parts": (0, 2), "gaps": (0, _MOST)}.get(name, (-_MOST, _MOST))
        is_right = not numbers.size or bool(low <= numbers.min() and numbers.max() <= high)  # False for NaN
        if name in ends:
            bounds = numbers if name == "offsets" else np.append(0, numbers)
            is_right = bounds[0] == 0 and bounds[-1] == ends[name] and bool((np.diff(bounds) > 0).all())
        if not is_right:
            raise ValueError(f"{name}.npy has a number out of range")
    for role in ("user", "item"):
        if f"{role}_text" in checked:
            text = arrays[f"{role}_text"]
            if not np.array_equal(np.flatnonzero(text == 0) + 1, arrays[f"{role}_ends"]):
                raise ValueError(f"{role}_text.npy has other texts than {role}_ends.npy")
            text.tobytes().decode(*ENCODING)  # an error of it is a ValueError, too


def dataset_key(config: Config) -> str:
    """A hash of the atomic file and of every setting that shapes what is loaded."""
    digest = hashlib.sha256(f"{FORMAT} {__version__}".encode())
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
