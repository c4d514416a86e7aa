"""Several processes that work as one run: which of them this is, and what passes between them.

Everything here also works in a single process, where nothing is sent. Numbers of processes count from 0; the first one
logs, saves and reports.
"""

import os
import socket
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from logging import getLogger
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, distributed

from recbole_lisa.errors import ProcessFailedError

T = TypeVar("T")
_TORCHRUN = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
BACKENDS = {"cpu": "gloo", "cuda": "cpu:gloo,cuda:nccl"}


def several() -> bool:
    """Whether this process is one of a group."""
    return distributed.is_available() and distributed.is_initialized()


def rank() -> int:
    """The number of this process."""
    return distributed.get_rank() if several() else 0


def n_processes() -> int:
    """How many processes there are."""
    return distributed.get_world_size() if several() else 1


def is_first() -> bool:
    """Whether this process is the one that logs, saves and reports."""
    return rank() == 0


def torchrun_size() -> int | None:
    """The number of processes that torchrun started, of which this is one; None when it did not."""
    return int(os.environ["WORLD_SIZE"]) if all(name in os.environ for name in _TORCHRUN) else None


def n_cores() -> int:
    """CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def warn_if_crowded(device_type: str) -> None:
    """Say so when several processes have to share a CPU core."""
    if device_type == "cpu" and n_processes() > n_cores():
        getLogger().warning(f"nproc is {n_processes()}, but there are {n_cores()} CPU cores: fewer are faster")


@contextmanager
def joined(device_type: str, *, number: int | None = None, size: int | None = None, store: Path | None = None) -> Any:
    """Be one of several processes: gloo carries tensors of the CPU, nccl those of GPUs.

    Args:
        device_type: cpu or cuda.
        number: Of this process; None takes everything from the environment, as torchrun sets it.
        size: How many there are.
        store: A file that all of them reach, where they find each other: no port has to be agreed on.
    """
    if number is None or size is None or store is None:
        distributed.init_process_group(BACKENDS[device_type])
    else:
        _stay_on_this_machine()
        meeting = distributed.FileStore(str(store), size)  # type: ignore[attr-defined]  # torch names it nowhere
        distributed.init_process_group(BACKENDS[device_type], store=meeting, rank=number, world_size=size)
    try:
        yield
    finally:
        distributed.destroy_process_group()


def _stay_on_this_machine() -> None:
    """Let gloo use the loopback device, unless the user names another one."""
    loopback = [name for _, name in socket.if_nameindex() if name in ("lo", "lo0")]
    if loopback:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", loopback[0])


@contextmanager
def _in_contact() -> Iterator[None]:
    """Tell the end of another process from a mistake of this one.

    Raises:
        ProcessFailedError: The others do not answer.
    """
    try:
        yield
    except RuntimeError as error:
        reason = str(error).strip().split("\n")[0]
        raise ProcessFailedError(
            f"process {rank()} of {n_processes()} lost contact with another process: {reason}"
        ) from error


def sum_in_place(x: Tensor) -> Tensor:
    """Replace x by its sum over the processes, the same bits in all of them; also returns it."""
    if several():
        with _in_contact():
            distributed.all_reduce(x)
    return x


def copy_from_first(tensors: Iterable[Tensor]) -> None:
    """Overwrite tensors with those of the first process."""
    if several():
        with torch.no_grad(), _in_contact():
            for x in tensors:
                distributed.broadcast(x.detach(), src=0)


def from_first(value: T) -> T:
    """The value of the first process; any object that can be pickled."""
    if not several():
        return value
    box = [value]
    with _in_contact():
        distributed.broadcast_object_list(box, src=0)
    return box[0]


def gathered(value: T) -> list[T]:
    """The values of all processes, in their order."""
    if not several():
        return [value]
    values: list[Any] = [None] * n_processes()
    with _in_contact():
        distributed.all_gather_object(values, value)
    return values


def wait_for_all() -> None:
    """Return when every process is here."""
    gathered(None)
