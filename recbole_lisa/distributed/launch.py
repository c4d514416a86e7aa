"""Starts the processes of a run by torchrun's launcher, which watches them and ends all of them when one fails."""

import contextlib
import logging
import multiprocessing
import os
import pickle
import signal
import socket
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator
from multiprocessing import resource_tracker
from typing import Any

import torch
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from recbole_lisa.distributed.processes import T, is_first, n_cores, process_group
from recbole_lisa.environment import make_allocation_cheap
from recbole_lisa.errors import ProcessFailedError, TrainingDivergedError, UsageError
from recbole_lisa.files import Termination

_KINDS = {kind.__name__: kind for kind in (UsageError, TrainingDivergedError, ProcessFailedError)}
_HOST = "127.0.0.1"
# With SIGINT left to Python the launcher ends importing processes at once after Ctrl+C; torch 2.6 has no such choice.
_SIGNALS: dict[str, Any] = {"signals_to_handle": "SIGTERM,SIGHUP,SIGQUIT"}
_OPTIONS = _SIGNALS if "signals_to_handle" in vars(LaunchConfig) else {}


def launch(call: Callable[..., T], config: Any, *args: Any) -> T:
    """Call `call(config, *args)` in `nproc` new processes that form one group; the result of the first one.

    `call` is a function at the top of a module; all arguments must be picklable.

    Raises:
        UsageError: The arguments cannot be pickled, or a process raised it; so for TrainingDivergedError.
        ProcessFailedError: A process was killed, or failed with another error.
    """
    size = config["nproc"]
    try:
        pickle.dumps((call, config, args))
    except Exception as error:  # noqa: BLE001 - pickle raises what the objects' own methods raise
        advice = "define the model class at the top of a module"
        raise UsageError(f"nproc={size}: this run cannot be sent to other processes ({error}); {advice}") from error
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # of the new processes: no hints on DistributedDataParallel
    with tempfile.TemporaryDirectory(prefix="recbole-lisa-") as folder, _prepared():
        settings = LaunchConfig(
            min_nodes=1,
            max_nodes=1,
            nproc_per_node=size,
            run_id=os.path.basename(folder),
            rdzv_backend="c10d",
            rdzv_endpoint=f"{_HOST}:0",
            local_addr=_HOST,
            max_restarts=0,
            logs_specs=DefaultLogsSpecs(log_dir=folder),
            **_OPTIONS,
        )
        try:
            results: dict[int, T] = elastic_launch(settings, _work)(call, config, args)
            return results[0]
        except ChildFailedError as error:
            raise _reason(*error.get_first_failure(), size) from None
        except SignalException as stop:
            raise (KeyboardInterrupt if stop.sigval == signal.SIGINT else Termination(128 + stop.sigval)) from None


def _work(call: Callable[..., Any], config: Any, args: tuple[Any, ...]) -> Any:
    """The work of a new process."""
    make_allocation_cheap()
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # ends without a traceback
    _mask_interrupts("SIG_UNBLOCK")
    from tqdm import tqdm

    tqdm.set_lock(threading.RLock())  # its own lock has a semaphore, which an interruption leaks
    if os.environ["RANK"] != "0":
        warnings.simplefilter("ignore")  # the first process gives the same ones
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(max(n_cores() // config["nproc"], 1))
    for name in {"lo", "lo0"} & {name for _, name in socket.if_nameindex()}:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", name)
    with process_group(config):
        result = call(config, *args)
        return result if is_first() else None


def _reason(number: int, failure: ProcessFailure, size: int) -> BaseException:
    """The exception that describes how process `number` of `size` ended."""
    process, status = f"process {number} of {size}", failure.exitcode
    if status == -signal.SIGINT:  # Ctrl+C reached the process before the launcher
        return KeyboardInterrupt()
    if isinstance(failure.message, dict):
        kind, _, message = failure.message["message"].partition(": ")
        message = " ".join(message.split())
        if kind in _KINDS:
            return _KINDS[kind](message)
        stack = "" if message.startswith("[Errno") else failure.message["extraInfo"]["py_callstack"]
        return ProcessFailedError(f"{process} failed: {kind}: {message}", stack)
    if status < 0:
        return ProcessFailedError(f"{process} was killed by signal {-status} ({signal.Signals(-status).name})")
    hint = '; a script that starts several needs `if __name__ == "__main__":` around the call' if status == 1 else ""
    return ProcessFailedError(f"{process} ended with status {status}{hint}")


@contextlib.contextmanager
def _prepared() -> Iterator[None]:
    """Silence the launcher's log lines, restore the signal handlers that it replaces, and leave no process behind."""
    for name in ("torch.distributed.elastic", "torch.multiprocessing", "torchelastic-events-null"):
        logger = logging.getLogger(name)
        logger.propagate = False
        logger.addHandler(logging.NullHandler())
    names = filter(lambda name: hasattr(signal, name), ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT"))
    handlers = {getattr(signal, name): signal.getsignal(getattr(signal, name)) for name in names}
    # Interrupts are blocked in this thread, and so in the processes that it starts: Ctrl+C while they import prints
    # nothing. Another thread receives them for this process.
    children, done = set(multiprocessing.active_children()), threading.Event()
    threading.Thread(target=done.wait, daemon=True).start()
    resource_tracker.ensure_running()  # its start unblocks interrupts
    _mask_interrupts("SIG_BLOCK")
    try:
        yield
    finally:
        _mask_interrupts("SIG_UNBLOCK")
        done.set()
        for process in set(multiprocessing.active_children()) - children:
            process.kill()
            process.join()
        for number, handler in handlers.items():
            if handler is not None and threading.current_thread() is threading.main_thread():
                signal.signal(number, handler)


def _mask_interrupts(how: str) -> None:
    if hasattr(signal, "pthread_sigmask"):  # not on Windows
        signal.pthread_sigmask(getattr(signal, how), {signal.SIGINT})
