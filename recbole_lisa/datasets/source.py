"""Opening a raw file: a plain file, a .gz or .zip of it, or the folder of an unpacked archive."""

import codecs
import contextlib
import gzip
import io
import zipfile
import zlib
from collections.abc import Callable, Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, NamedTuple

from recbole_lisa.errors import UsageError
from recbole_lisa.files import ARCHIVE_ERRORS, readable

_BUFFER_BYTES = 2**20
_MARKS = {
    "utf-8-sig": (codecs.BOM_UTF8,),
    "utf-32": (codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE),  # before utf-16, whose mark begins alike
    "utf-16": (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE),
}
_PACKED = (b"\x1f\x8b", b"PK\x03\x04", b"PAR1", b"BZh9", b"\xfd7zXZ", b"\x28\xb5\x2f\xfd", b"7z\xbc\xaf")
OTHER_ENCODING = "write it in utf-8, or name its encoding (the option of convert, the setting of run)"
NO_TEXT = "a packed file must be named .gz, .zip or .parquet, or be unpacked first; of utf-16 without a mark " + (
    OTHER_ENCODING
)
_DAMAGED = (zipfile.BadZipFile, gzip.BadGzipFile, EOFError, zlib.error)


class RawFile(NamedTuple):
    """An open raw file: its name without `.gz`, and a stream of its unpacked bytes.

    `size` bytes are to be read, in the unit of `position()`, the bytes read so far; of a .gz, compressed ones.
    """

    name: str
    stream: io.BufferedReader
    size: int
    position: Callable[[], int]

    def start(self, encoding: str) -> tuple[str, str]:
        """The encoding to use, and up to 1 MiB of the text of a file that has not been read yet.

        A byte-order mark overrides the encoding. An unknown encoding, or a file that is not text, is a `UsageError`.
        """
        content = self.stream.peek(1)
        encoding = next((name for name, marks in _MARKS.items() if content.startswith(marks)), encoding)
        try:
            text = content.decode(encoding, "ignore")
        except (LookupError, ValueError) as error:
            raise UsageError(f"encoding is '{encoding}', it must be a text encoding such as utf-8") from error
        if content.startswith(_PACKED) or "\0" in text.partition("\n")[0]:
            raise UsageError(f"{self.name} is not text: {NO_TEXT}")
        return encoding, text


@contextlib.contextmanager
def open_raw(path: Path, members: tuple[str, ...] = ()) -> Iterator[RawFile]:
    """Open a file, a `.gz` or `.zip` of it, or the one file of a `.zip` or a folder that matches a name of `members`.

    Raises:
        UsageError: The file is missing, ambiguous or unreadable; or what is read from it turns out to be damaged.
    """
    with contextlib.ExitStack() as stack:
        try:
            raw = _open(path, members, stack)
        except UsageError:
            raise
        except OSError as error:
            raise UsageError(f"cannot read '{path}': {error.strerror or error}") from error
        except ARCHIVE_ERRORS as error:
            raise UsageError(f"cannot unpack '{path}': {error}") from error
        try:
            yield raw
        except _DAMAGED as error:
            raise UsageError(f"'{path}' is damaged, it cannot be unpacked: {error}") from error


def _open(path: Path, members: tuple[str, ...], stack: contextlib.ExitStack) -> RawFile:
    if readable(path, is_pipe_allowed=False).is_dir():
        names = sorted(str(file.relative_to(path)) for file in path.rglob("*") if file.is_file())
        path = path / _only_match(path, names, members)
    if path.suffix.lower() == ".zip":
        archive = stack.enter_context(zipfile.ZipFile(path))
        member = archive.getinfo(_only_match(path, archive.namelist(), members))
        stream: Any = stack.enter_context(archive.open(member))
        name, size = Path(member.filename), member.file_size
    else:
        stream, name, size = stack.enter_context(path.open("rb")), path, path.stat().st_size
    position = stream.tell
    if name.suffix.lower() == ".gz":
        stream, name = stack.enter_context(gzip.GzipFile(fileobj=stream)), name.with_suffix("")
    return RawFile(name.name, stack.enter_context(io.BufferedReader(stream, _BUFFER_BYTES)), size, position)


def _only_match(place: Path, names: list[str], members: tuple[str, ...]) -> str:
    plain = {name: Path(name).name.lower().removesuffix(".gz") for name in names if not name.startswith("__MACOSX")}
    matches = [name for name, file in plain.items() if any(fnmatch(file, member) for member in members)]
    if len(matches) != 1:
        holds = ", ".join((matches or names)[:10]) or "nothing"
        raise UsageError(f"'{place}' must hold one file {' or '.join(members)}, it holds {holds}: name one")
    return matches[0]
