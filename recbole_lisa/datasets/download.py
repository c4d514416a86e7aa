"""Downloading one file by pooch: it is complete and checked, or it is absent."""

import re
import threading
from pathlib import Path

import pooch
import requests

from recbole_lisa import __version__
from recbole_lisa.errors import UsageError
from recbole_lisa.files import new_folder
from recbole_lisa.progress import bars_shown

_ANSWER_SECONDS = 10.0
_READ_SECONDS = 30.0
_RETRIES = 3
_HEADERS = {"User-Agent": f"recbole-lisa/{__version__}"}


class DownloadError(UsageError):
    """A file could not be downloaded; the message says why."""


def download(url: str, target: Path, checksum: str | None, *, show_progress: bool = False) -> None:
    """Fetch a file; a transfer that breaks off or differs from its checksum is started again, three times at most.

    `checksum` is `md5:<hex>` or `sha256:<hex>`; None when the publisher names none.

    Raises:
        DownloadError: There is no answer, a refusal, a broken transfer or another checksum.
        UsageError: The checksum is invalid, or the folder cannot be written.
    """
    if checksum is not None and not re.fullmatch(r"(md5:[0-9a-fA-F]{32}|sha256:[0-9a-fA-F]{64})", checksum):
        raise UsageError(f"archive_checksum is '{checksum}', it must be md5:<hex> or sha256:<hex>")
    if not re.match("https?://", url):
        raise UsageError(f"archive_url is '{url}', it must begin with http:// or https://")
    registry, urls = {target.name: checksum}, {target.name: url}
    store = pooch.create(target.parent, "", registry=registry, urls=urls, retry_if_failed=_RETRIES)
    pooch.get_logger().setLevel("WARNING")
    options = {"chunk_size": 2**18, "timeout": _READ_SECONDS, "headers": _HEADERS}
    downloader = pooch.HTTPDownloader(progressbar=bars_shown(show_progress), **options)
    try:
        with new_folder(target.parent):
            _check_answer(url)
            store.fetch(target.name, downloader=downloader)
    except UsageError:
        raise
    except (ValueError, requests.RequestException) as error:
        raise DownloadError(f"cannot download {url}: {_reason(error)}") from error
    except OSError as error:
        raise UsageError(f"cannot write '{target}': {error.strerror or error}") from error


def _check_answer(url: str) -> None:
    """Ask the server for the file. In a thread, because a name lookup behind a firewall can take minutes."""
    errors: list[requests.RequestException] = []

    def ask() -> None:
        try:
            with requests.get(url, stream=True, timeout=_READ_SECONDS, headers=_HEADERS) as response:
                response.raise_for_status()
        except requests.RequestException as error:
            errors.append(error)

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(_ANSWER_SECONDS)
    if thread.is_alive():
        raise DownloadError(f"cannot download {url}: no answer within {_ANSWER_SECONDS:g} seconds")
    if errors:
        raise errors[0]


def _reason(error: BaseException) -> str:
    """What the system said, without the names of the classes in between; else what the server or requests said."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.strerror:
            return cause.strerror
        cause = cause.__cause__ or cause.__context__
    return str(error)
