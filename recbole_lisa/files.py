"""Files that are complete or absent: atomic writing, the check of outputs, and unique names.

Every command and setting that writes a file which the user names works in two steps:

    check_output(path, overwrite=options.overwrite)   # before the work starts
    ...
    with atomic_writer(path) as stream:               # after it
        stream.write(...)

A command gets `overwrite` from its flag `--overwrite`, a run from the setting `overwrite`. A file that a run continues
(a resumed checkpoint, the folder of a resumed search) is not checked: pass `overwrite=True` or leave the call out.
"""

import contextlib
import errno
import io
import os
import signal
import stat
import threading
import time
import zipfile
import zlib
from collections.abc import Callable, Iterator
from logging import getLogger
from pathlib import Path

from recbole_lisa.errors import UsageError, shown

AnyPath = str | os.PathLike[str]

ARCHIVE_ERRORS = (zipfile.BadZipFile, zlib.error, OverflowError, EOFError, OSError, RuntimeError, ValueError)
"""What zipfile, gzip and numpy raise for a damaged archive. A UsageError is a ValueError."""


class AtomicFile(io.BufferedWriter):
    """A file of `atomic_writer`; `path` is where it is once it is complete."""

    path: Path


@contextlib.contextmanager
def atomic_writer(path: AnyPath, *, overwrite: bool = True) -> Iterator[AtomicFile]:
    """Open a hidden temporary file beside `path` for writing bytes, and move it there once it is complete.

    A crash, a full disk or an interruption leaves the old file (or no file), never half a new one. Missing folders are
    made. Without `overwrite`, a file that another process has written since `check_output` is kept: the new one is
    `name-2.json`, and a warning says so.

    Raises:
        OSError: Nothing can be written there, or `path` is a device, a pipe or a socket; its `filename` is `path`.
    """
    target = Path(path)
    _check_kind(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = temporary_path(target)
    try:
        with AtomicFile(io.FileIO(temporary, "w")) as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        stream.path = _place(temporary, target, overwrite)
    except UsageError:
        raise
    except Exception as error:
        reason: BaseException | None = error
        while reason is not None and not isinstance(reason, OSError):  # torch.save replaces it by a RuntimeError
            reason = reason.__context__
        if reason is None or reason.filename not in (None, str(temporary)):
            raise
        raise OSError(reason.errno or errno.EIO, reason.strerror or str(reason), str(target)) from error
    finally:
        temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def new_folder(path: AnyPath) -> Iterator[Path]:
    """Make a folder; when the work in it fails, the folders made for it are removed again if they are empty."""
    folder = Path(path)
    missing = [parent for parent in (folder, *folder.parents) if not parent.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield folder
    except BaseException:
        for parent in missing:
            with contextlib.suppress(OSError):
                parent.rmdir()
        raise


@contextlib.contextmanager
def locked(path: Path, refusal: str = "", *, waiting: str = "") -> Iterator[None]:
    """Hold a lock file; while another process does, log `waiting` and wait, or without it raise UsageError(refusal)."""
    from filelock import FileLock, Timeout

    lock = FileLock(path, timeout=0)
    try:
        lock.acquire()
    except Timeout as error:
        if not waiting:
            raise UsageError(refusal) from error
        getLogger().info(waiting)
        lock.acquire(timeout=-1)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
        lock.release()


class Termination(SystemExit):
    """A request to terminate, with the status of its signal."""


@contextlib.contextmanager
def tidy_termination() -> Iterator[None]:
    """Turn SIGTERM into a `Termination`, so that files are cleaned up first; SIGHUP of a closed terminal is a SIGTERM.

    It acts in the main thread only, and only where the program has no handler of its own and ignores no SIGHUP (nohup).
    """
    in_main = threading.current_thread() is threading.main_thread()
    if not in_main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return

    def stop(number: int, _: object) -> None:
        raise Termination(128 + number)

    handlers: dict[signal.Signals, Callable[..., None]] = {signal.SIGTERM: stop}
    if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:  # Windows has none
        handlers[signal.SIGHUP] = lambda *_: signal.raise_signal(signal.SIGTERM)
    for number, handler in handlers.items():
        signal.signal(number, handler)
    try:
        yield
    finally:
        for number in handlers:
            signal.signal(number, signal.SIG_DFL)


@contextlib.contextmanager
def advise_after_interruption(advice: Callable[[], str]) -> Iterator[None]:
    """Make `advice()` the attribute `advice` of a Ctrl+C or SIGTERM that passes; the command line prints it."""
    try:
        yield
    except (KeyboardInterrupt, Termination) as stop:
        vars(stop)["advice"] = advice()
        raise


def probe_writing(path: AnyPath) -> None:
    """Raise an OSError where `atomic_writer` cannot write; a missing folder is not made, and nothing is left."""
    target = Path(path)
    _check_kind(target)
    folder = next(parent for parent in target.parents if parent.exists())
    temporary = temporary_path(folder / target.name)
    temporary.open("xb").close()
    temporary.unlink()


def path_of(path: AnyPath, what: str) -> Path:
    """A path; a UsageError for a value of another type, and for one that is no name of a file in this locale."""
    if not isinstance(path, str | os.PathLike):
        raise UsageError(f"{what} must be a path, got {shown(path)}")
    if "\0" in str(path):
        raise UsageError(f"{what} is {shown(path)}, it must not have the character NUL")
    try:
        os.fsencode(path)
    except UnicodeEncodeError as error:
        reason = f"the encoding {error.encoding} of this locale's file names lacks {error.object[error.start]!a}"
        raise UsageError(f"{what} is {shown(path)}, but {reason}: set PYTHONUTF8=1") from error
    return Path(path)


def resolved(path: AnyPath) -> Path:
    """`Path.resolve`; of links that form a circle, for which it fails before Python 3.13, the path as it is."""
    return Path(os.path.realpath(path))


def check_output(path: AnyPath, *, overwrite: bool, folder: bool = False, source: AnyPath | None = None) -> None:
    """Refuse an output that cannot be written or that would replace something, before the work for it starts.

    An absent path, an empty file and an empty folder are free. Nothing is left behind. `overwrite` allows to replace a
    file, or to write to a folder with files in it; `source` is what the work reads and must not replace.

    Raises:
        UsageError: The path is empty, of the other kind, a device or the source, its folder cannot be written, or it
            exists without `overwrite`.
    """
    target, kind = path_of(path, "the output"), "folder" if folder else "file"
    if overwrite not in (True, False):  # the text 'False' would count as True
        raise UsageError(f"overwrite must be True or False, got {shown(overwrite)}")
    if not str(path).strip():
        raise UsageError(f"the path of the output is empty: name a {kind}")
    if source is not None and resolved(target) == resolved(source):
        raise UsageError(f"'{path}' is the input, too: name another {kind} for the output")
    try:
        if target.is_dir() and not folder:
            raise UsageError(f"'{path}' is a folder: name a file in it")
        if target.is_file() and folder:
            raise UsageError(f"'{path}' is a file: name a folder")
        probe_writing(target / "output" if folder else target)
        taken = target.exists() and (any(target.iterdir()) if folder else target.stat().st_size > 0)
    except OSError as error:
        raise UsageError(f"'{path}' cannot be written ({error.strerror}): name another {kind}") from error
    if taken and not overwrite:
        state = "has files in it" if folder else "exists"
        raise UsageError(f"'{path}' {state}: pass overwrite=True to replace it, or name another {kind}")


def unique_run_name(model: str, dataset: str) -> str:
    """A name for the files of one run, unique among all runs on all machines.

    For example LISASoft-ml-100k-2025-11-28_00-31-02-4711-3fa2c19be04d7a65. Two runs may start in the same second, hence
    the random part; it comes from the operating system and moves no seeded generator. RecBole cuts the name of the
    TensorBoard folder at the first dot, hence no dots.
    """
    moment = time.strftime("%Y-%m-%d_%H-%M-%S")
    name = f"{model}-{dataset}-{moment}-{os.getpid()}-{os.urandom(8).hex()}"
    return name.replace(".", "_").replace(os.sep, "_")


def _place(temporary: Path, target: Path, overwrite: bool) -> Path:
    """Move a complete file to `target`, or without `overwrite` to the first name that no file has; the path."""
    place, number = target, 2
    while not overwrite and not (place == target and place.exists() and place.stat().st_size == 0):
        try:
            os.link(temporary, place)  # never replaces a file
            break
        except OSError:
            if not place.exists():  # a file system without links
                break
        place, number = target.with_name(f"{target.stem}-{number}{target.suffix}"), number + 1
    if place != target:
        getLogger().warning(f"another process has written '{target}' meanwhile: it is kept, this one is '{place}'")
    os.replace(temporary, place)  # of two links to one file it does nothing
    return place


def readable(path: Path, *, is_pipe_allowed: bool = True) -> Path:
    """The path; an OSError for a device, which may have no end, and for a pipe where a reader goes back in the file."""
    mode = path.stat().st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode) or (is_pipe_allowed and stat.S_ISFIFO(mode))):
        raise OSError(errno.EINVAL, "is not a regular file", str(path))
    return path


def _check_kind(target: Path) -> None:
    """Refuse to put a file in the place of a device, a pipe or a socket, which `os.replace` would do."""
    if target.exists() and not target.is_file() and not target.is_dir():
        raise FileExistsError(errno.EEXIST, "Is no regular file", str(target))


def temporary_path(target: Path) -> Path:
    """A hidden name beside `target` that no other process uses."""
    return target.with_name(f".{target.name}.{os.getpid()}.{os.urandom(8).hex()}.tmp")
