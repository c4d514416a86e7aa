"""Starting the processes of a run and watching over them: they end well together or not at all."""

import contextlib
import multiprocessing
import os
import pickle
import signal
import sys
import tempfile
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing import forkserver, reduction
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, NamedTuple

import torch
from recbole.config import Config

from recbole_lisa.distributed.processes import joined, n_cores, torchrun_size
from recbole_lisa.errors import ProcessFailedError, TrainingDivergedError, UsageError

LAST_WORDS_S = 3.0
"""How long the others may go on once a process has failed: to say why, and to end by themselves."""
_LATE_IMPORT = "torch._dynamo"
"""What torch imports, for seconds, when the first optimizer is made."""
_OUTPUTS = (1, 2)
_KINDS: tuple[type[Exception], ...] = (UsageError, TrainingDivergedError, ProcessFailedError)


class Failure(NamedTuple):
    """How a process ended before its time.

    Attributes:
        number: Of the process.
        kind: The class of its exception where the command knows it; None for any other, and for a silent end.
        message: In one line.
        details: The traceback of an exception that the command does not know.
        is_echo: It lost contact with another process, whose end is the reason.
    """

    number: int
    kind: type[Exception] | None
    message: str
    details: str = ""
    is_echo: bool = False


@dataclass
class _Process:
    """One started process and the pipe that it reports through."""

    number: int
    process: Any
    pipe: Connection
    began: bool = False


def joins_torchrun(config: Config) -> bool:
    """Whether this process is one of those that torchrun started.

    Raises:
        UsageError: `nproc` names another number of processes.
    """
    size = torchrun_size()
    if size is not None and config["nproc"] not in (1, size):
        raise UsageError(f"nproc is {config['nproc']}, but torchrun started {size} processes: leave nproc out")
    return size is not None


@contextlib.contextmanager
def torchrun_group(config: Config) -> Iterator[None]:
    """Join the processes that torchrun started.

    Raises:
        UsageError: There are fewer GPUs than processes on this machine.
    """
    use_device(config, int(os.environ["LOCAL_RANK"]))
    with joined(config["device"].type):
        yield


def use_device(config: Config, number: int) -> None:
    """Give process `number` of this machine its GPU; nothing changes on the CPU.

    Raises:
        UsageError: There is no such GPU.
    """
    if config["device"].type != "cuda":
        return
    if number >= torch.cuda.device_count():
        raise UsageError(f"process {number} has no GPU: there are {torch.cuda.device_count()}, start as many processes")
    config["device"], config["local_rank"] = torch.device("cuda", number), number
    torch.cuda.set_device(number)


def launch(call: Callable[..., Any], config: Config, *args: Any) -> Any:
    """Call `call(config, *args)` in `nproc` new processes at once, each of them in one group.

    Args:
        call: A function at the top of a module.
        config: Of the run.
        *args: What can be pickled.

    Returns:
        What the call returns in the first process.

    Raises:
        UsageError: The arguments cannot be sent, or a process found a mistake of the user.
        TrainingDivergedError: As the processes raise it.
        ProcessFailedError: A process was killed, or an error ended it.
    """
    size, on_cpu = config["nproc"], config["device"].type == "cpu"
    try:
        work = pickle.dumps((call, config, args))
    except Exception as error:  # noqa: BLE001 - pickle raises what the objects' own methods raise
        raise UsageError(
            f"nproc={size}: this run cannot be sent to other processes ({error}); define the model class at the top of "
            "a module"
        ) from error
    context = _forking_context(call.__module__) if on_cpu else multiprocessing.get_context("spawn")
    outputs = _Outputs() if context.get_start_method() == "forkserver" else ()
    n_threads = None if "OMP_NUM_THREADS" in os.environ else max(n_cores() // size, 1)
    processes: list[_Process] = []
    with tempfile.TemporaryDirectory(prefix="recbole-lisa-") as folder:
        try:
            for number in range(size):
                receiver, sender = context.Pipe(duplex=False)
                task = (sender, work, number, size, Path(folder, "meeting"), n_threads, outputs)
                process = context.Process(target=_work, args=task, name=f"process {number}")
                process.start()
                sender.close()
                processes.append(_Process(number, process, receiver))
            result = _results(processes)[0]
            for entry in processes:
                entry.process.join(LAST_WORDS_S)
            return result
        finally:
            _end(processes)


def _forking_context(module: str) -> Any:
    """A server that imports everything once and forks the processes, where there can be one.

    Not for GPUs: CUDA does not outlive a fork, should an import have touched it.

    Args:
        module: What the processes need.
    """
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([module, _LATE_IMPORT])
    inherited = os.environ.get("PYTHONPATH")
    # The server looks for modules where Python does by itself, not where this program does.
    os.environ["PYTHONPATH"] = os.pathsep.join(os.path.abspath(path) for path in sys.path)
    try:
        forkserver.ensure_running()
    finally:
        del os.environ["PYTHONPATH"]
        if inherited is not None:
            os.environ["PYTHONPATH"] = inherited
    return context


class _Outputs:
    """This program's stdout and stderr; a server that forks has those of the time when it was started."""

    def __reduce__(self) -> Any:
        """What a new process gets: copies of the two open files."""
        return tuple, ([reduction.DupFd(number) for number in _OUTPUTS],)


def _results(processes: list[_Process]) -> dict[int, Any]:
    """What each process returns; the first failure that is no echo of another one is raised."""
    results: dict[int, Any] = {}
    failures: list[Failure] = []
    waiting = {entry.pipe: entry for entry in processes}
    deadline = None
    while waiting and (deadline is None or time.monotonic() < deadline):
        for pipe in wait(list(waiting), None if deadline is None else deadline - time.monotonic()):
            assert isinstance(pipe, Connection)
            answer = _receive(waiting[pipe])
            if answer == "began":
                waiting[pipe].began = True
                continue
            number = waiting.pop(pipe).number
            if isinstance(answer, Failure):
                failures.append(answer)
                deadline = deadline or time.monotonic() + LAST_WORDS_S
            else:
                results[number] = pickle.loads(answer[0])
    if failures:
        _raise(min(failures, key=lambda failure: failure.is_echo), len(processes))
    return results


def _receive(entry: _Process) -> Any:
    """The next message of a process; a Failure when it has ended without one."""
    try:
        return entry.pipe.recv()
    except EOFError:
        entry.process.join(LAST_WORDS_S)
    status = entry.process.exitcode
    if status is not None and status < 0:
        return Failure(entry.number, None, f"was killed by signal {-status} ({signal.Signals(-status).name})")
    hint = "" if entry.began else '; a script that starts several needs `if __name__ == "__main__":` around the call'
    return Failure(entry.number, None, f"ended with status {status}{hint}")


def _raise(failure: Failure, size: int) -> None:
    if failure.kind is not None:
        raise failure.kind(failure.message)
    raise ProcessFailedError(f"process {failure.number} of {size} {failure.message}", failure.details)


def _end(processes: list[_Process]) -> None:
    """Leave no process behind."""
    for stop in ("terminate", "kill"):
        for entry in processes:
            if entry.process.exitcode is None:
                getattr(entry.process, stop)()
        for entry in processes:
            entry.process.join(LAST_WORDS_S)


def _work(
    sender: Connection, work: bytes, number: int, size: int, store: Path, n_threads: int | None, outputs: Any
) -> None:
    """What a new process does: join the others, call, report."""
    for here, there in zip(outputs, _OUTPUTS, strict=False):
        os.dup2(here.detach(), there)
    _end_with_parent()
    if number:
        warnings.simplefilter("ignore")  # the first process gives the same ones
    if n_threads is not None:
        torch.set_num_threads(n_threads)
    try:
        sender.send("began")
        call, config, args = pickle.loads(work)
        use_device(config, number)
        with joined(config["device"].type, number=number, size=size, store=store):
            result = call(config, *args)
        sender.send((pickle.dumps(result if number == 0 else None),))  # tensors by value: this process ends
    except KeyboardInterrupt:
        raise SystemExit(128 + signal.SIGINT) from None
    except Exception as error:  # noqa: BLE001 - whatever ended the run has to be told
        sender.send(_failure(number, error))
        raise SystemExit(1) from None


def _failure(number: int, error: Exception) -> Failure:
    """Describe an exception in plain values: not every one can be sent."""
    message = " ".join(str(error).split())
    kind = next((kind for kind in _KINDS if isinstance(error, kind)), None)
    if kind is not None:
        return Failure(number, kind, message, is_echo=kind is ProcessFailedError)
    return Failure(number, None, f"failed: {type(error).__name__}: {message}", traceback.format_exc())


def _end_with_parent() -> None:
    """End this process when the one that started it does, however that ends."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def follow() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()
