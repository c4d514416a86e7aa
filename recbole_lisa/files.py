"""Files that are either complete or not there: atomic writing, and names that no other run uses."""

import contextlib
import errno
import os
import secrets
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from recbole_lisa.errors import UsageError


@contextlib.contextmanager
def atomic_writer(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Open a hidden temporary file beside `path` and move it there once it is complete.

    A crash, a full disk or an interruption leaves the old file (or no file), never half a new one.

    Args:
        path: Where the finished file goes; missing folders are made.

    Yields:
        The temporary file, open for writing bytes.

    Raises:
        OSError: Nothing can be written there, or a device, a pipe or a socket would be replaced by the file.
    """
    target = Path(path)
    _check_kind(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = _temporary(target)
    try:
        with open(temporary, "wb") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def new_folder(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Make a folder; whatever folders are made for it vanish again when the work fails and leaves them empty.

    Args:
        path: The folder; it may exist.

    Yields:
        The folder.
    """
    folder = Path(path)
    missing = [place for place in (folder, *folder.parents) if not place.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield folder
    except BaseException:
        for place in missing:
            with contextlib.suppress(OSError):
                place.rmdir()
        raise


class Termination(SystemExit):
    """A request to terminate, with the status of its signal."""


@contextlib.contextmanager
def tidy_termination() -> Iterator[None]:
    """Let a request to terminate clean up first: it becomes a `Termination`.

    Only in the main thread, and only where the program has no handler of its own.
    """
    in_main = threading.current_thread() is threading.main_thread()
    if not in_main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return

    def stop(number: int, _: object) -> None:
        raise Termination(128 + number)

    signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def probe_writing(path: str | os.PathLike[str]) -> None:
    """Find out whether `atomic_writer` could write `path`; nothing is left behind.

    Args:
        path: The file. Where its folder is missing, the nearest folder above it is tried.

    Raises:
        OSError: No file can be made there; `strerror` says why.
    """
    target = Path(path)
    _check_kind(target)
    folder = next(parent for parent in target.parents if parent.exists())
    temporary = _temporary(folder / target.name)
    try:
        temporary.open("xb").close()
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()


def check_replaceable(path: str | os.PathLike[str], is_own: Callable[[Path], bool], *, name: str, content: str) -> None:
    """Refuse to write a file where that fails or loses what somebody else has put there, before the work for it starts.

    No file, an empty one, and one of the kind that is to be written may be replaced.

    Args:
        path: The file.
        is_own: Whether a file is of this kind; may raise OSError or ValueError for one that cannot be read as such.
        name: What the user calls the path, such as `result_file`.
        content: The kind, such as `the result of a run`.

    Raises:
        UsageError: No file can be made there, a folder is there, or a file of another kind.
    """
    target = Path(path)
    if target.is_dir():
        raise UsageError(f"{name} '{path}' is a folder; name a file in it")
    try:
        probe_writing(target)
    except OSError as error:
        raise UsageError(
            f"{name} '{path}' cannot be written ({error.strerror}); name a file in a folder that can be"
        ) from error
    try:
        is_free = not target.is_file() or target.stat().st_size == 0 or is_own(target)
    except (OSError, ValueError):
        is_free = False
    if not is_free:
        raise UsageError(f"{name} '{path}' exists and is not {content}, which alone is replaced; name another file")


def unique_run_name(model: str, dataset: str) -> str:
    """A name for the files of one run, different for every run on every machine.

    The time alone is not enough: two runs that start in one second would share a file. The random part comes
    from the operating system, so that no seeded generator moves. There is no dot in the name, because RecBole
    cuts the name of the TensorBoard folder at the first dot.

    Args:
        model: Model name, for example `LISASoft`.
        dataset: Data set name, for example `ml-100k`.

    Returns:
        For example `LISASoft-ml-100k-2025-11-28_00-31-02-4711-3fa2c19be04d7a65`.
    """
    moment = time.strftime("%Y-%m-%d_%H-%M-%S")
    name = f"{model}-{dataset}-{moment}-{os.getpid()}-{secrets.token_hex(8)}"
    return name.replace(".", "_").replace(os.sep, "_")


def _check_kind(target: Path) -> None:
    """Refuse to put a file in the place of a device, a pipe or a socket, which `os.replace` would do."""
    if target.exists() and not target.is_file() and not target.is_dir():
        raise FileExistsError(errno.EEXIST, "Is no regular file", str(target))


def _temporary(target: Path) -> Path:
    """A hidden name beside `target` that no other process uses."""
    return target.with_name(f".{target.name}.{os.getpid()}.{secrets.token_hex(8)}.tmp")
