"""The one raw file inside what the user named: a file, a .gz or .zip, or the folder of an unpacked archive."""

from __future__ import annotations

import codecs
import contextlib
import gzip
import io
import zipfile
import zlib
from collections.abc import Callable, Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import IO

from recbole_lisa.errors import UsageError

_BUFFER_BYTES = 2**20
# The mark of utf-32 begins like that of utf-16.
_MARKS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
# What files of other kinds begin with, and what to do about it.
_KINDS = {
    b"\x1f\x8b": "a gzip file: its name must end in .gz",
    b"PK\x03\x04": "a zip archive: its name must end in .zip",
    b"PAR1\x15": "a parquet file: its name must end in .parquet",
    b"BZh91AY&SY": "a bzip2 file: unpack it first",
    b"\xfd7zXZ": "an xz file: unpack it first",
    b"\x28\xb5\x2f\xfd": "a zstd file: unpack it first",
    b"7z\xbc\xaf": "a 7z archive: unpack it first",
}
_WINDOWS_ENDS = (b"\r\n", b"\r\0\n", b"\r\0\0\0\n")  # of narrow text, utf-16 and utf-32
_TAR_MARK, _TAR_PLACE = b"ustar", 257
_DAMAGED = (zipfile.BadZipFile, gzip.BadGzipFile, EOFError, zlib.error, NotImplementedError)


class RawFile(io.RawIOBase):
    """The bytes of a raw file, watched while they pass.

    Attributes:
        name: Name of the file, without `.gz`.
        total: Bytes to read, in the measure of `position`.
        path: Where it lies; None inside an archive.
        has_bom: Whether the file opens with a byte-order mark.
        has_crlf: Whether a line so far ended in carriage return and line feed.
    """

    def __init__(
        self,
        stream: IO[bytes] | gzip.GzipFile,
        name: str,
        total: int,
        *,
        path: Path | None = None,
        position: Callable[[], int] | None = None,
    ) -> None:
        super().__init__()
        self.name, self.total, self.path = name, total, path
        self.has_bom = self.has_crlf = False
        self._stream = stream
        self._passed = 0
        self._tail = b""
        self._position = position
        self._allows_nul = False

    @property
    def position(self) -> int:
        """Bytes read so far; of a .gz, compressed ones."""
        return self._position() if self._position else self._passed

    def readable(self) -> bool:
        """Always: this is an input."""
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        """Read the next bytes.

        Raises:
            UsageError: The archive is damaged, or the file is no text but of another kind.
        """
        try:
            chunk = self._stream.read(len(buffer))
        except _DAMAGED as error:
            raise UsageError(f"{self.name} is damaged, it cannot be unpacked: {error}") from error
        if not self._passed:
            self._look_at_start(chunk)
        if b"\0" in chunk and not self._allows_nul:
            at = self._passed + chunk.index(b"\0")
            raise UsageError(
                f"{self.name} has a NUL byte at position {at}: it is no text, or text in an encoding such as utf-16, "
                "which --encoding must name"
            )
        self.has_crlf = self.has_crlf or self._ends_lines_twice(chunk)
        self._passed += len(chunk)
        buffer[: len(chunk)] = chunk
        return len(chunk)

    def allow_nul(self) -> None:
        """Accept NUL bytes, which wide encodings are full of."""
        self._allows_nul = True

    def _ends_lines_twice(self, chunk: bytes) -> bool:
        """Whether this chunk, or where it meets the one before, has a Windows line end."""
        seen = self._tail + chunk
        self._tail = seen[1 - max(map(len, _WINDOWS_ENDS)) :]
        return any(end in seen for end in (_WINDOWS_ENDS if self._allows_nul else _WINDOWS_ENDS[:1]))

    def _look_at_start(self, chunk: bytes) -> None:
        kind = next((kind for mark, kind in _KINDS.items() if chunk.startswith(mark)), None)
        if chunk[_TAR_PLACE:].startswith(_TAR_MARK):
            kind = "a tar archive: unpack it first"
        if kind is not None:
            raise UsageError(f"{self.name} is {kind}")
        encoding = marked_encoding(chunk)
        self.has_bom = encoding is not None
        self._allows_nul = self._allows_nul or encoding in ("utf-16", "utf-32")


def marked_encoding(start: bytes) -> str | None:
    """The encoding that a byte-order mark at the start of a file tells, or None."""
    return next((encoding for mark, encoding in _MARKS if start.startswith(mark)), None)


def text_start(raw: RawFile, stream: io.BufferedReader, encoding: str) -> tuple[str, str]:
    """Look at the start of a text file without moving on.

    Args:
        raw: The file.
        stream: The reader over it, at its start.
        encoding: What it is in, unless a byte-order mark tells otherwise.

    Returns:
        The encoding, and the first line.

    Raises:
        UsageError: There is no such encoding.
    """
    try:
        if b"\0" in "a".encode(encoding):
            raw.allow_nul()
        b"a".decode(encoding, "ignore")  # which some that are no encodings of files refuse
    except (LookupError, ValueError) as error:
        raise UsageError(f"--encoding is '{encoding}', it must be a text encoding, such as utf-8 or latin-1") from error
    start = stream.peek(1)
    encoding = marked_encoding(start) or encoding
    return encoding, start.decode(encoding, "ignore").partition("\n")[0].rstrip("\r")


@contextlib.contextmanager
def open_raw(path: Path, members: tuple[str, ...]) -> Iterator[tuple[RawFile, io.BufferedReader]]:
    """Open the raw file.

    Args:
        path: A file, a `.gz` or `.zip` of it, or a folder that holds it.
        members: Patterns of the file's name inside a `.zip` or a folder; exactly one file must match.

    Yields:
        The watched file, and a buffered reader over it.

    Raises:
        UsageError: There is no such file, or it cannot be opened.
    """
    with contextlib.ExitStack() as stack:
        try:
            raw = _open(path, members, stack)
        except _DAMAGED as error:
            raise UsageError(f"{path} is damaged or no archive of its kind: {error}") from error
        except OSError as error:
            raise UsageError(f"cannot read '{path}': {error.strerror or error}") from error
        except RuntimeError as error:  # zipfile's word for a missing password
            raise UsageError(f"cannot unpack '{path}': {error}") from error
        yield raw, stack.enter_context(io.BufferedReader(raw, _BUFFER_BYTES))


def _open(path: Path, members: tuple[str, ...], stack: contextlib.ExitStack) -> RawFile:
    if path.is_dir():
        names = sorted(str(file.relative_to(path)) for file in path.rglob("*") if file.is_file())
        return _open(path / _only_match(path, names, members), members, stack)
    if path.suffix.lower() == ".zip":
        archive = stack.enter_context(zipfile.ZipFile(path))
        member = archive.getinfo(_only_match(path, archive.namelist(), members))
        unpacked = stack.enter_context(archive.open(member))
        return _plain(unpacked, Path(member.filename), member.file_size, stack)
    stream = stack.enter_context(path.open("rb"))
    return _plain(stream, path, path.stat().st_size, stack, path=path)


def _plain(stream: IO[bytes], name: Path, size: int, stack: contextlib.ExitStack, path: Path | None = None) -> RawFile:
    """A file of `size` bytes, seen through its .gz where it has one."""
    if name.suffix.lower() != ".gz":
        return RawFile(stream, name.name, size, path=path)
    unpacked = stack.enter_context(gzip.GzipFile(fileobj=stream))
    return RawFile(unpacked, name.stem, size, position=stream.tell)


def _only_match(place: Path, names: list[str], members: tuple[str, ...]) -> str:
    wanted = " or ".join(members)
    found = [name for name in names if any(fnmatch(Path(name).name.lower(), member) for member in members)]
    found = [name for name in found if not name.startswith("__MACOSX")]
    if not found:
        raise UsageError(f"'{place}' holds no {wanted}, only {', '.join(names[:10]) or 'nothing'}")
    if len(found) > 1:
        raise UsageError(f"'{place}' holds {len(found)} files that could be meant ({', '.join(found[:10])}): name one")
    return found[0]
