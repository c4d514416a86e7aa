"""One run in several processes: the rank of this process, and what the processes exchange.

Every function also works in a single process, where nothing is sent. The first process, rank 0, logs and writes files.
"""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from logging import getLogger
from typing import Any, TypeVar

import torch
from torch import Tensor, distributed

from recbole_lisa.errors import TrainingDivergedError, UsageError

T = TypeVar("T")
BACKENDS = {"cpu": "gloo", "cuda": "cpu:gloo,cuda:nccl"}
_GRACE_S = 3.0


def several() -> bool:
    """Whether this process is one of a group."""
    return distributed.is_available() and distributed.is_initialized()


def rank() -> int:
    """The number of this process."""
    return distributed.get_rank() if several() else 0


def n_processes() -> int:
    """The number of processes."""
    return distributed.get_world_size() if several() else 1


def is_first() -> bool:
    """Whether this is the process that logs and writes files."""
    return rank() == 0


def n_cores() -> int:
    """CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def warn_if_crowded(device_type: str) -> None:
    """Warn when CPU cores have several processes."""
    if device_type == "cpu" and n_processes() > n_cores():
        getLogger().warning(f"nproc is {n_processes()}, but there are {n_cores()} CPU cores: fewer are faster")


def started_by_torchrun(config: Any) -> bool:
    """Whether torchrun started this process; another number of processes than `nproc` is a UsageError."""
    if not distributed.is_torchelastic_launched():
        return False
    size = int(os.environ["WORLD_SIZE"])
    if config["nproc"] not in (1, size):
        raise UsageError(f"nproc is {config['nproc']}, but torchrun started {size} processes: leave nproc out")
    return True


@contextmanager
def process_group(config: Any) -> Iterator[None]:
    """Join torchrun's processes; on GPUs `device` becomes that of this one, or a UsageError where it has none."""
    if config["device"].type == "cuda":
        number, n_gpus = int(os.environ["LOCAL_RANK"]), torch.cuda.device_count()
        if number >= n_gpus:
            raise UsageError(f"process {number} has no GPU: there are {n_gpus}, start as many processes")
        config["device"], config["local_rank"] = torch.device("cuda", number), number
        torch.cuda.set_device(number)
    distributed.init_process_group(BACKENDS[config["device"].type])
    try:
        yield
    except RuntimeError as error:
        if not isinstance(error, TrainingDivergedError):
            time.sleep(_GRACE_S)  # another process may have ended: the launcher reports that one
        raise
    finally:
        distributed.destroy_process_group()


def sum_in_place(x: Tensor) -> Tensor:
    """Replace x by its sum over the processes, the same bits in all of them; also returns it."""
    if several():
        distributed.all_reduce(x)
    return x


def from_first(value: T) -> T:
    """The value of the first process; any object that can be pickled."""
    box = [value]
    if several():
        distributed.broadcast_object_list(box, src=0)
    return box[0]


def gathered(value: T) -> list[T]:
    """The values of all processes, by rank; returns when every process has called this function."""
    values = [value] * n_processes()
    if several():
        distributed.all_gather_object(values, value)
    return values
