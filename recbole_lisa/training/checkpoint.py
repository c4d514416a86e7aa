"""Checkpoints: one plain dictionary per file, written atomically, read without running code from the file.

Every file holds tensors and plain Python values only, so `torch.load(path, weights_only=True)` reads it.
RecBole's keys (`config`, `epoch`, `cur_step`, `best_valid_score`, `state_dict`, `other_parameter`,
`optimizer`) keep their names. A run writes `<name>.pth`, the best epoch, and `<name>-last.pth`, the newest.
Both hold all that is needed to go on from there.
"""

import os
import random
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from recbole_lisa.errors import UsageError
from recbole_lisa.files import atomic_writer, probe_writing

FORMAT = "recbole-lisa checkpoint 1"
LAST_SUFFIX = "-last.pth"


def check_checkpoint_dir(folder: str | os.PathLike[str] | None) -> None:
    """Refuse a `checkpoint_dir` that could hold no checkpoint, before hours of training.

    Raises:
        UsageError: `folder` is empty, a file, or nothing can be written there.
    """
    if not folder:
        raise UsageError(f"checkpoint_dir is {folder!r}; name a folder for the checkpoints, such as saved")
    if Path(folder).exists() and not Path(folder).is_dir():
        raise UsageError(f"checkpoint_dir '{folder}' is a file; name a folder for the checkpoints, such as saved")
    try:
        probe_writing(Path(folder) / "run.pth")
    except OSError as error:
        raise UsageError(
            f"checkpoint_dir '{folder}': nothing can be written there ({error.strerror}); name a folder that can be"
        ) from error


def save_checkpoint(state: Mapping[str, Any], path: str | os.PathLike[str]) -> None:
    """Write `state` to `path`; an interruption leaves the old file intact."""
    with atomic_writer(path) as stream:
        torch.save(dict(state), stream)


def load_checkpoint(path: str | os.PathLike[str], *, needed: Iterable[str] = (), lazy: bool = False) -> dict[str, Any]:
    """Read a checkpoint that this package wrote.

    Args:
        path: The file.
        needed: Keys that the file must hold.
        lazy: Map the tensors from the file instead of reading them (for a look at the plain values).

    Returns:
        The dictionary that was saved; its tensors are on the CPU.

    Raises:
        UsageError: the file is missing, damaged, not a checkpoint of this package, or lacks a needed key.
    """
    if not Path(path).is_file():
        raise UsageError(f"there is no checkpoint '{path}'; give the path of a .pth file of an earlier run")
    try:
        checkpoint = torch.load(str(path), map_location="cpu", weights_only=True, mmap=lazy)
    except Exception as error:  # torch raises whatever the broken bytes lead to: many unrelated types
        reason = re.split(r"\n|\. ", str(error).strip())[0]  # torch goes on with advice to run what the file says
        raise UsageError(f"'{path}' is damaged or is no checkpoint of recbole-lisa: {reason}") from error
    found = checkpoint.get("format") if isinstance(checkpoint, dict) else None
    if found != FORMAT:
        raise UsageError(f"'{path}' is no checkpoint of recbole-lisa: format {found!r}, not {FORMAT!r}")
    missing = [key for key in needed if key not in checkpoint]
    if missing:
        raise UsageError(f"'{path}' is incomplete: it lacks {', '.join(missing)}; give a file that a run has written")
    return checkpoint


def last_file(best_file: str | os.PathLike[str]) -> Path:
    """The file with the newest state beside the best one: `<name>.pth` -> `<name>-last.pth`."""
    return Path(best_file).with_name(Path(best_file).stem + LAST_SUFFIX)


def capture_rng() -> dict[str, Any]:
    """The states of all global random number generators, as tensors and plain values."""
    version, words, gauss = random.getstate()
    name, keys, position, has_gauss, cached = np.random.get_state(legacy=True)
    return {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
        "numpy": [str(name), keys.tolist(), int(position), int(has_gauss), float(cached)],
        "python": [version, list(words), gauss],
    }


def restore_rng(state: Mapping[str, Any]) -> None:
    """Put all global random number generators back to what `capture_rng` saw."""
    torch.set_rng_state(state["torch"])
    if torch.cuda.is_available() and len(state["cuda"]) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all(state["cuda"])
    name, keys, position, has_gauss, cached = state["numpy"]
    np.random.set_state((name, np.array(keys, dtype=np.uint32), position, has_gauss, cached))
    version, words, gauss = state["python"]
    random.setstate((version, tuple(words), gauss))
