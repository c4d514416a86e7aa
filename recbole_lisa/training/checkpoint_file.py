"""The file of a checkpoint: one plain dictionary of tensors and Python values, written at once and checked when read.

`torch.load(path, weights_only=True)` reads it without running code. RecBole's keys (`config`, `epoch`, `cur_step`,
`best_valid_score`, `state_dict`, `other_parameter`, `optimizer`) keep their names. A run writes `<name>.pth`, its best
epoch, and `<name>-last.pth`, its newest one; both hold all that is needed to continue. The file is a zip archive: the
CRC-32 of each record is its checksum.
"""

import errno
import io
import os
import zipfile
from collections.abc import Iterable, Mapping
from logging import getLogger
from pathlib import Path
from typing import Any

import torch

from recbole_lisa.errors import UsageError
from recbole_lisa.files import AnyPath, atomic_writer, path_of
from recbole_lisa.training.checkpoint_schema import check_entries

FORMAT = "recbole-lisa checkpoint 1"
LAST_SUFFIX = "-last.pth"
# Attributes of the trainer that change from epoch to epoch.
PROGRESS = ("cur_step", "best_valid_score", "best_valid_result", "best_epoch", "history", "curve")
WEIGHT_KEYS = ("model", "dataset", "data_fingerprint", "state_dict", "other_parameter")
RUN_KEYS = (*WEIGHT_KEYS, *PROGRESS, "config", "epoch", "best_file", "optimizer", "scaler", "rng")
_ZIP_END_BYTES = 22


def save_checkpoint(state: Mapping[str, Any], path: AnyPath) -> None:
    """Write `state` to `path`; an interruption or a full disk (OSError) leaves the old file intact."""
    with atomic_writer(path) as stream:
        torch.save(dict(state), stream)


class Saver:
    """Writes the checkpoints of a run; one that cannot be written is logged, and the training continues.

    `unsaved` is path -> error of such files, `saved` the others; `best` has the bytes of the best state while its file
    is unsaved.
    """

    def __init__(self) -> None:
        self.unsaved: dict[str, OSError] = {}
        self.saved: set[str] = set()
        self.best: bytes | None = None

    def save(self, state: Mapping[str, Any], path: AnyPath, *, is_best: bool) -> None:
        """Write `state`, but no newer state while the best one is unsaved: a resumed run needs two files that fit."""
        if self.best is not None and not is_best:
            best_path = str(path).removesuffix(LAST_SUFFIX) + ".pth"
            self.save(torch.load(io.BytesIO(self.best), weights_only=True), best_path, is_best=True)
            if self.best is not None:
                return
        error = self.unsaved.pop(str(path), None)
        try:
            save_checkpoint(state, path)
            self.saved.add(str(path))
            self.best = None
        except OSError as new_error:
            self.unsaved[str(path)] = new_error
            self.saved.discard(str(path))
            if error is None:
                getLogger().warning(f"'{path}' cannot be written: {new_error.strerror}; the training continues")
            if is_best:
                torch.save(dict(state), content := io.BytesIO())
                self.best = content.getvalue()

    def is_removed(self, path: AnyPath) -> bool:
        """Whether another program has removed a file that is saved."""
        return str(path) in self.saved and not Path(path).is_file()

    def check(self) -> None:
        """Raise the OSError of a file that is not written."""
        for error in self.unsaved.values():
            raise error


def load_checkpoint(path: AnyPath, *, needed: Iterable[str] = (), lazy: bool = False) -> dict[str, Any]:
    """The dictionary of a checkpoint that this package wrote, with its tensors on the CPU.

    `lazy` maps the tensors from the file instead of reading and checking them, for a look at the plain values. A
    UsageError where the file is missing, damaged or of another program, or a key is missing or has another type.
    """
    if not path_of(path, "the checkpoint").is_file():
        what = f"'{path}' is not a file" if Path(path).exists() else f"there is no checkpoint '{path}'"
        raise UsageError(f"{what}; give the path of a .pth file of an earlier run")
    if not os.access(path, os.R_OK):
        raise UsageError(f"'{path}' cannot be read: permission denied")
    try:
        with zipfile.ZipFile(path) as archive:
            damaged = None if lazy else archive.testzip()
            if min(record.header_offset for record in archive.infolist()):
                raise OSError(errno.EINVAL, "there are bytes before its start, such as those of another file")
        with open(path, "rb") as stream:
            stream.seek(-_ZIP_END_BYTES, os.SEEK_END)
            if not stream.read().startswith(b"PK\5\6"):
                raise OSError(errno.EINVAL, "there are bytes after its end")
        is_text = str(path) == str(path).encode(errors="replace").decode()  # torch maps no path of other bytes
        mmap = lazy and is_text
        checkpoint: dict[str, Any] = torch.load(str(path), map_location="cpu", weights_only=True, mmap=mmap)
    except Exception as error:  # torch raises whatever the broken bytes lead to: many unrelated types
        reason = getattr(error, "strerror", None) or "give a .pth file of a run"  # torch's text is of no use here
        raise UsageError(f"'{path}' is damaged or is not a checkpoint of recbole-lisa: {reason}") from error
    if damaged:
        raise UsageError(f"'{path}' is damaged: the checksum of its record {damaged} is wrong; take another checkpoint")
    file_format = checkpoint.get("format") if isinstance(checkpoint, dict) else None
    if file_format != FORMAT:
        raise UsageError(f"'{path}' is not a checkpoint of recbole-lisa: format {file_format!r}, not {FORMAT!r}")
    if missing := [key for key in needed if key not in checkpoint]:
        raise UsageError(f"'{path}' is incomplete: it lacks {', '.join(missing)}; give a file that a run has written")
    check_entries(checkpoint, path)
    return checkpoint


def item_ids_of(state: Mapping[str, Any]) -> bytes | None:
    """The raw ids of items 1, 2, ... in a checkpoint, one a line; None in files of earlier versions."""
    if (ids := state.get("item_ids")) is None:
        return None
    try:
        content: bytes = ids.numpy().astype("u1", casting="no").tobytes()
        content.decode("utf-8", "surrogatepass")
    except (TypeError, ValueError) as error:
        raise UsageError("the checkpoint is damaged or forged: item_ids must be the bytes of a text") from error
    return content


def last_file(best_file: AnyPath) -> Path:
    """The file with the newest state beside the best one: `<name>.pth` -> `<name>-last.pth`."""
    return Path(best_file).with_name(Path(best_file).stem + LAST_SUFFIX)


def check_finite(weights: Mapping[str, torch.Tensor]) -> None:
    """Refuse, as a UsageError, weights with a number that is not finite, and a unit of time that is not above 0."""
    for name, weight in weights.items():
        if weight.is_floating_point() and not bool(weight.isfinite().all()):
            raise UsageError(f"the checkpoint is damaged or forged: {name} has a number that is not finite")
    if "time_unit" in weights and not bool((weights["time_unit"] > 0).all()):
        raise UsageError("the checkpoint is damaged or forged: time_unit is not above 0")
