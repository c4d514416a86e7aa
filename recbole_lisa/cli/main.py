"""The command line `recbole-lisa`: the first argument names the command. Each command has its own file.

A command that fails prints one line on stderr; its exit status says what kind of failure it was.
"""

import atexit
import contextlib
import errno
import gc
import io
import os
import re
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from recbole_lisa.cli import imported
from recbole_lisa.errors import (
    ProcessFailedError,
    TrainingDivergedError,
    UsageError,
    advise_missing_recbole,
    did_you_mean,
    shortened,
)
from recbole_lisa.files import Termination, tidy_termination

COMMANDS = (
    *("run", "download", "convert", "evaluate", "compare", "report", "tune"),
    *("export", "add-items", "recommend", "serve", "migrate", "info", "completion"),
)
_FAILED, _USAGE, _SIGPIPE = 1, 2, 13


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command that the first of `argv` names, or `run`; return the exit status, see `report_errors`."""
    print_any_text()
    arguments = list(sys.argv[1:] if argv is None else argv)
    name = arguments.pop(0) if arguments and not arguments[0].startswith("-") else "run"
    return report_errors(lambda: _command(name)(arguments))


def check_environment() -> None:
    """Refuse a variable of the environment that Numba would refuse with a traceback, in the middle of a command."""
    threads = os.environ.get("NUMBA_NUM_THREADS", "")
    if re.fullmatch(r"-\d+|0+", threads):  # for a text Numba takes its default
        raise UsageError(f"the variable NUMBA_NUM_THREADS is {threads}, it must be at least 1: unset it")


def _command(name: str) -> Callable[[Sequence[str]], int]:
    if name not in COMMANDS:
        raise UsageError(f"unknown command '{name}': known are {', '.join(COMMANDS)}.{did_you_mean(name, COMMANDS)}")
    command: Callable[[Sequence[str]], int] = imported(f"cli.{name.replace('-', '_')}_command").main
    return command


def report_errors(command: Callable[[], int]) -> int:
    """Run a command; an expected error, or an interruption, is one line on stderr and an exit status.

    Returns:
        0; 2 after a mistake of the user; 1 when the training diverged, a process of a run ended early or a file
        failed; 141 where the reader of a pipe has ended; 130 after Ctrl+C and 143 after SIGTERM or SIGHUP.
    """
    try:
        with tidy_termination(), advise_missing_recbole():
            check_environment()
            status = command()
            sys.stdout.flush()
            return status
    except (UsageError, TrainingDivergedError, ProcessFailedError) as error:
        print(getattr(error, "details", ""), end="", file=sys.stderr)
        return _print_error(error, _USAGE if isinstance(error, UsageError) else _FAILED)
    except OSError as error:
        is_of_stdout = _stdout_fails() or error.errno in (errno.ENOSPC, errno.EPIPE)
        if isinstance(error, BrokenPipeError) and error.filename is None:  # the reader, such as head, has ended
            return 128 + _SIGPIPE
        if path := error.filename or ("standard output" if is_of_stdout else None):
            return _print_error(f"'{path}': {error.strerror or error}", _FAILED)
        return _print_error(f"{type(error).__name__}: {error}", _FAILED)  # of a connection, for instance
    except (KeyboardInterrupt, Termination) as stop:
        if "triton" not in sys.modules:  # its nanobind lists what is not collected
            atexit.register(gc.freeze)  # the interpreter's last collection, over all modules, takes a second
        advice = vars(stop).get("advice")  # of `advise_after_interruption`
        with contextlib.suppress(OSError):  # of a closed terminal
            print("interrupted" if advice is None else f"interrupted: {advice}", file=sys.stderr, flush=True)
        return 128 + (signal.SIGTERM if isinstance(stop, Termination) else signal.SIGINT)


def print_any_text() -> None:
    r"""Write characters that an encoding lacks as `\u3042`, in child processes too; a closed stream goes nowhere."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115  # until the process ends
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    os.environ["PYTHONIOENCODING"] = f"{encoding}:backslashreplace"


def _print_error(error: object, status: int) -> int:
    line = " ".join(str(error).split()).replace("pass overwrite=True", "add --overwrite")
    print(f"error: {shortened(line)}", file=sys.stderr)
    return status


def _stdout_fails() -> bool:
    """Whether stdout cannot be written; then it goes nowhere, so that the end of the process does not try again."""
    try:
        print(end="", flush=True)
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return True
    return False
