"""Files that are either complete or not there: atomic writing, and names that no other run uses."""

import contextlib
import os
import secrets
import signal
import threading
import time
from collections.abc import Iterator
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
    """
    target = Path(path)
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


@contextlib.contextmanager
def tidy_termination() -> Iterator[None]:
    """Let a request to terminate clean up first: it becomes a SystemExit with the status of that signal.

    Only in the main thread, and only where the program has no handler of its own.
    """
    in_main = threading.current_thread() is threading.main_thread()
    if not in_main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return

    def stop(number: int, _: object) -> None:
        raise SystemExit(128 + number)

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
        OSError: No file or folder can be made there; `strerror` says why.
    """
    target = Path(path)
    folder = next(parent for parent in target.parents if parent.exists())
    temporary = _temporary(folder / target.name)
    try:
        temporary.open("xb").close()
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()


def check_output_file(path: str | os.PathLike[str], option: str) -> None:
    """Refuse a file that `atomic_writer` could not write, before the work that fills it.

    Args:
        path: The file.
        option: That names it.

    Raises:
        UsageError: It is a folder, or no file can be made there.
    """
    if Path(path).is_dir():
        raise UsageError(f"{option} '{path}' is a folder; name a file")
    try:
        probe_writing(path)
    except OSError as error:
        raise UsageError(
            f"{option} '{path}' cannot be written ({error.strerror}); name a file in a folder that can be"
        ) from error


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


def _temporary(target: Path) -> Path:
    """A hidden name beside `target` that no other process uses."""
    return target.with_name(f".{target.name}.{os.getpid()}.{secrets.token_hex(8)}.tmp")
