"""Starts the processes of a run by torchrun's launcher, and reports which one failed and why.

The launcher starts each process as torchrun does, watches them, and ends all of them when one fails.
"""

import contextlib
import logging
import multiprocessing
import os
import pickle
import signal
import socket
import tempfile
import threading
import uuid
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from recbole_lisa.distributed.processes import is_first, n_cores, process_group
from recbole_lisa.errors import ProcessFailedError, TrainingDivergedError, UsageError
from recbole_lisa.files import Termination

_KINDS = {kind.__name__: kind for kind in (UsageError, TrainingDivergedError, ProcessFailedError)}
_HOST = "127.0.0.1"


def launch(call: Callable[..., Any], config: Any, *args: Any) -> Any:
    """Call `call(config, *args)` in `nproc` new processes that form one group.

    Args:
        call: A function at the top of a module.
        config: Of the run: `nproc` and `device`.
        *args: Further arguments; they must be picklable.

    Returns:
        The result of the first process.

    Raises:
        UsageError: The arguments cannot be pickled, or a process raised it.
        TrainingDivergedError: A process raised it.
        ProcessFailedError: A process was killed, or failed with another error.
    """
    size = config["nproc"]
    try:
        pickle.dumps((call, config, args))
    except Exception as error:  # noqa: BLE001 - pickle raises what the objects' own methods raise
        raise UsageError(
            f"nproc={size}: this run cannot be sent to other processes ({error}); define the model class at the top of "
            "a module"
        ) from error
    _silence_launcher()
    with tempfile.TemporaryDirectory(prefix="recbole-lisa-") as folder, _signals_as_before(), _no_child_left():
        settings = LaunchConfig(
            min_nodes=1,
            max_nodes=1,
            nproc_per_node=size,
            run_id=uuid.uuid4().hex,
            rdzv_backend="c10d",
            rdzv_endpoint=f"{_HOST}:0",
            local_addr=_HOST,
            max_restarts=0,
            monitor_interval=0.1,
            logs_specs=DefaultLogsSpecs(log_dir=folder),
        )
        try:
            return elastic_launch(settings, _work)(call, config, args)[0]
        except ChildFailedError as error:
            raise _reason(*error.get_first_failure(), size) from None
        except SignalException as stop:
            if stop.sigval == signal.SIGINT:
                raise KeyboardInterrupt from None
            raise Termination(128 + stop.sigval) from None


def _work(call: Callable[..., Any], config: Any, args: tuple[Any, ...]) -> Any:
    """The work of a new process."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # ends without a traceback
    _mask_interrupts(signal.SIG_UNBLOCK)
    if os.environ["RANK"] != "0":
        warnings.simplefilter("ignore")  # the first process gives the same ones
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(max(n_cores() // config["nproc"], 1))
    loopback = [name for _, name in socket.if_nameindex() if name in ("lo", "lo0")]
    if loopback:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", loopback[0])
    with process_group(config):
        result = call(config, *args)
        return result if is_first() else None


def _reason(number: int, failure: ProcessFailure, size: int) -> Exception:
    """The exception that describes how process `number` of `size` ended."""
    if failure.exitcode == -signal.SIGINT:
        return KeyboardInterrupt()  # type: ignore[return-value]  # Ctrl+C reached the process before the launcher
    process = f"process {number} of {size}"
    if isinstance(failure.message, dict):
        kind, _, message = failure.message["message"].partition(": ")
        message = " ".join(message.split())
        if kind in _KINDS:
            return _KINDS[kind](message)
        return ProcessFailedError(f"{process} failed: {kind}: {message}", failure.message["extraInfo"]["py_callstack"])
    if failure.exitcode < 0:
        return ProcessFailedError(
            f"{process} was killed by signal {-failure.exitcode} ({signal.Signals(-failure.exitcode).name})"
        )
    hint = '; a script that starts several needs `if __name__ == "__main__":` around the call'
    return ProcessFailedError(f"{process} ended with status {failure.exitcode}{hint if failure.exitcode == 1 else ''}")


def _silence_launcher() -> None:
    """Keep the launcher's own log lines off the terminal; `_reason` reports failures in one line."""
    for name in ("torch.distributed.elastic", "torch.multiprocessing", "torchelastic-events-null"):
        logger = logging.getLogger(name)
        logger.propagate = False
        logger.addHandler(logging.NullHandler())


@contextlib.contextmanager
def _signals_as_before() -> Iterator[None]:
    """Give the program its signal handlers back, which the launcher replaces.

    Interrupts are blocked in this thread, and so in the processes that it starts: Ctrl+C while they import prints
    nothing. Another thread receives them for this process.
    """
    names = ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT")
    in_main = threading.current_thread() is threading.main_thread()
    handlers = {number: signal.getsignal(number) for number in (getattr(signal, n, None) for n in names) if number}
    done = threading.Event()
    threading.Thread(target=done.wait, daemon=True).start()
    _mask_interrupts(signal.SIG_BLOCK)
    try:
        yield
    finally:
        _mask_interrupts(signal.SIG_UNBLOCK)
        done.set()
        for number, handler in handlers.items() if in_main else ():
            if handler is not None:
                signal.signal(number, handler)


def _mask_interrupts(how: int) -> None:
    if hasattr(signal, "pthread_sigmask"):  # not on Windows
        signal.pthread_sigmask(how, {signal.SIGINT})


@contextlib.contextmanager
def _no_child_left() -> Iterator[None]:
    """End the processes that are left when the launcher is interrupted while it starts them."""
    before = set(multiprocessing.active_children())
    try:
        yield
    finally:
        for process in set(multiprocessing.active_children()) - before:
            process.kill()
            process.join()
