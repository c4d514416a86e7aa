"""Downloading one file: it is whole and checked, or it is not there.

What has come of a broken-off transfer stays in `<file>.part`, and the next attempt asks for the rest.
"""

from __future__ import annotations

import hashlib
import http.client
import os
import queue
import re
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

from tqdm import tqdm

from recbole_lisa import __version__
from recbole_lisa.errors import UsageError
from recbole_lisa.files import new_folder

_ANSWER_SECONDS = 10.0
_READ_SECONDS = 30.0
_ATTEMPTS = 5
_PAUSE_SECONDS = 1.0
_BLOCK_BYTES = 2**18
_ALGORITHMS = ("md5", "sha256")
_BROKEN = (OSError, http.client.HTTPException)


class DownloadError(UsageError):
    """A file could not be downloaded; the message says why, and what is kept."""


def download(url: str, target: Path, checksum: str | None, *, show_progress: bool = False) -> None:
    """Fetch a file.

    A server that does not answer within seconds ends the download at once. A transfer that breaks off is taken
    up again where it stopped, until five attempts in a row bring nothing. A part that an earlier call left is taken up
    only under a checksum, which tells when the file has changed in between.

    Args:
        url: Address, http or https.
        target: Where the finished file goes.
        checksum: `md5:<hex>` or `sha256:<hex>`; None when its publisher names none.
        show_progress: Draw a bar on a terminal.

    Raises:
        DownloadError: There is no answer, the server refuses, the transfer keeps breaking off, or the checksum
            differs; then the file is not kept.
        UsageError: The address, the checksum or the folder is of no use.
    """
    if not url.startswith(("http://", "https://")) or not url.isascii() or not _has_host(url):
        raise UsageError(
            f"'{url}' is no address to download from: it must begin with https:// or http:// and a host, and be "
            "written in ASCII (other characters as %xx)"
        )
    split_checksum(checksum)
    part = target.with_name(target.name + ".part")
    try:
        with new_folder(target.parent):
            if checksum is None:
                part.unlink(missing_ok=True)
            _Transfer(url, part, show_progress).complete()
            wrong = differing_checksum(part, checksum)
            if wrong:
                part.unlink()
                raise DownloadError(f"{url} was damaged on the way or has changed, and is not kept: {wrong}")
            os.replace(part, target)
    except OSError as error:
        raise UsageError(f"cannot write '{part}': {error.strerror or error}") from error


def _has_host(url: str) -> bool:
    try:
        return bool(urllib.parse.urlsplit(url).hostname)
    except ValueError:  # half a bracket
        return False


def split_checksum(checksum: str | None) -> tuple[str, str] | None:
    """Algorithm and hexadecimal digits of a checksum.

    Raises:
        UsageError: It is neither `md5:<hex>` nor `sha256:<hex>`.
    """
    if checksum is None:
        return None
    algorithm, _, digits = checksum.partition(":")
    if algorithm not in _ALGORITHMS or not re.fullmatch(r"[0-9a-fA-F]{32,64}", digits):
        raise UsageError(f"archive_checksum is '{checksum}', it must be md5:<hex> or sha256:<hex>")
    return algorithm, digits.lower()


def differing_checksum(path: Path, checksum: str | None) -> str | None:
    """How the checksum of a file differs from what it must be; None when it does not."""
    wanted = split_checksum(checksum)
    if wanted is None:
        return None
    digest = hashlib.new(wanted[0], usedforsecurity=False)
    with path.open("rb") as stream:
        while block := stream.read(_BLOCK_BYTES):
            digest.update(block)
    found = digest.hexdigest()
    return None if found == wanted[1] else f"its {wanted[0]} is {found}, its publisher's {wanted[1]}"


class _Transfer:
    """One file on its way into `part`, over as many requests as it takes."""

    def __init__(self, url: str, part: Path, show_progress: bool) -> None:
        self._url, self._part, self._show_progress = url, part, show_progress
        # The server's name for the version of the file, so that no part of another version is added.
        self._tag: str | None = None

    def complete(self) -> None:
        """Receive until nothing is missing; see `download`."""
        first = kept = self._size()
        fruitless = 0
        while True:
            try:
                return self._receive()
            except _BROKEN as error:
                size = self._size()
                fruitless = 0 if size > kept else fruitless + 1
                kept = size
                if size == first or fruitless >= _ATTEMPTS:
                    note = (
                        f"; the {size:,} bytes that have come are in {self._part}, run again to go on" if size else ""
                    )
                    raise DownloadError(f"cannot download {self._url}: {_reason(error)}{note}") from error
                time.sleep(_PAUSE_SECONDS * fruitless)

    def _size(self) -> int:
        return self._part.stat().st_size if self._part.exists() else 0

    def _receive(self) -> None:
        """One request for what is missing.

        Raises:
            OSError, HTTPException: The server does not answer, or the transfer breaks off.
            DownloadError: The server refuses.
        """
        start = self._size()
        headers = {"User-Agent": f"recbole-lisa/{__version__}", "Accept-Encoding": "identity"}
        if start:
            headers["Range"] = f"bytes={start}-"
            headers.update({"If-Range": self._tag} if self._tag else {})
        try:
            response = _answer(urllib.request.Request(self._url, headers=headers))
        except urllib.error.HTTPError as error:
            if error.code != 416 or not start:
                raise DownloadError(
                    f"cannot download {self._url}: the server answers {error.code} ({error.reason})"
                ) from error
            if error.headers.get("Content-Range") != f"bytes */{start}":  # else nothing is missing
                self._part.unlink()
                self._receive()
            return
        with response:
            goes_on = response.status == 206 and _first_byte(response) == start
            self._tag = _version(response)
            _store(response, self._part, start if goes_on else 0, self._show_progress)


def _store(response: Any, part: Path, start: int, show_progress: bool) -> None:
    length = response.headers.get("Content-Length")
    total = int(length) + start if length and length.isdecimal() else None
    bar = tqdm(
        **{"total": total, "initial": start, "desc": part.stem, "disable": None if show_progress else True},
        **{"unit": "B", "unit_scale": True},
    )
    with part.open("r+b" if start else "wb") as stream, bar:
        stream.seek(start)
        while block := response.read(_BLOCK_BYTES):
            stream.write(block)
            bar.update(len(block))
        stream.truncate()
        if total is not None and stream.tell() < total:
            raise ConnectionError(f"it broke off after {stream.tell():,} of {total:,} bytes")


def _first_byte(response: Any) -> int | None:
    found = re.match(r"bytes (\d+)-", response.headers.get("Content-Range", ""))
    return int(found[1]) if found else None


def _version(response: Any) -> str | None:
    tag: str | None = response.headers.get("ETag")
    return tag if tag and not tag.startswith("W/") else response.headers.get("Last-Modified")


def _answer(request: urllib.request.Request) -> Any:
    """The server's answer, or an error within seconds: looking up a name behind a firewall can hang for minutes."""
    box: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def ask() -> None:
        try:
            box.put(urllib.request.urlopen(request, timeout=_READ_SECONDS))
        except BaseException as error:  # noqa: BLE001 - handed to the thread that waits
            box.put(error)

    threading.Thread(target=ask, daemon=True).start()
    try:
        answer = box.get(timeout=_ANSWER_SECONDS)
    except queue.Empty:
        raise TimeoutError(f"no answer within {_ANSWER_SECONDS:g} seconds") from None
    if isinstance(answer, BaseException):
        raise answer
    return answer


def _reason(error: BaseException) -> str:
    reason = getattr(error, "reason", None) or error
    return str(getattr(reason, "strerror", None) or reason) or type(error).__name__
