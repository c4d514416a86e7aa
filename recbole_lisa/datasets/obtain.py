"""From the name of a public data set to its atomic file: download, check, convert."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from recbole_lisa.cli.convert_command import reading_from
from recbole_lisa.datasets.conversion import convert
from recbole_lisa.datasets.download import DownloadError, differing_checksum, download
from recbole_lisa.errors import UsageError

Built = TypeVar("Built")


@dataclass(frozen=True)
class RawData:
    """Where the raw file of a data set comes from and where its atomic file goes.

    Attributes:
        dataset: Name of the data set.
        folder: Where `<dataset>.inter` belongs.
        archive: Name of the raw file.
        source: The publisher's page.
        conversion: Format and options of the conversion command.
        url: Where the raw file can be downloaded, or None.
        checksum: Of the raw file, or None.
    """

    dataset: str
    folder: Path
    archive: str
    source: str
    conversion: str
    url: str | None
    checksum: str | None

    @classmethod
    def from_settings(cls, dataset: str, folder: Path, settings: Mapping[str, Any]) -> RawData:
        """Read the keys of a data set's yaml file."""
        return cls(
            dataset,
            folder,
            archive=settings["archive"],
            source=settings["source"],
            conversion=settings["conversion"],
            url=settings["archive_url"],
            checksum=settings["archive_checksum"],
        )

    @property
    def by_hand(self) -> str:
        """What the user can do without the download, as part of a sentence."""
        format_name, *options = shlex.split(self.conversion)
        words = ["recbole-lisa", "convert", format_name, self.archive, "--output", str(self.folder), *options]
        return f"get {self.archive} from {self.source} and run: {shlex.join(words)}"


class MissingDataError(UsageError):
    """The file of a data set is not there.

    Attributes:
        raw: Where it can come from; None for a data set of the user.
        may_download: Whether the settings allow to fetch it.
        show_progress: Whether the settings want bars.
    """

    def __init__(self, message: str, *, raw: RawData | None, may_download: bool, show_progress: bool) -> None:
        super().__init__(message)
        self.raw, self.may_download, self.show_progress = raw, may_download, show_progress


def obtain(raw: RawData, *, overwrite: bool = False, show_progress: bool = False) -> list[str]:
    """Download the raw file, unless it lies beside the data set's folder already, and convert it.

    Args:
        raw: The data set.
        overwrite: Replace an atomic file that is there.
        show_progress: Draw bars on a terminal.

    Returns:
        What was done, line by line.

    Raises:
        UsageError: The file cannot be downloaded, differs from its checksum or cannot be converted; the message
            says how to go on by hand.
    """
    archive = raw.folder.parent / raw.archive
    if archive.exists():
        lines = [f"found {archive}"]
        wrong = differing_checksum(archive, raw.checksum)
        if wrong:
            raise UsageError(f"{archive} is not what its publisher gives, {wrong}: delete it to download it again")
    else:
        if raw.url is None:
            raise UsageError(f"'{raw.dataset}' has no address to download from: {raw.by_hand}")
        try:
            download(raw.url, archive, raw.checksum, show_progress=show_progress)
        except DownloadError as error:
            raise DownloadError(f"{error}. Or {raw.by_hand}") from error
        checked = "its checksum is right" if raw.checksum else "its publisher names no checksum"
        lines = [f"downloaded {raw.url} to {archive}, {checked}"]
    reading = reading_from(shlex.split(raw.conversion))
    report = convert(archive, raw.folder, reading, overwrite=overwrite, show_progress=show_progress)
    return [*lines, *report.lines()]


def with_data(build: Callable[[], Built]) -> tuple[Built, list[str]]:
    """Build something that needs a data set; when its file is missing and can be had, fetch it and build again.

    Args:
        build: Raises `MissingDataError` without the file.

    Returns:
        What was built, and what was done for it, line by line.

    Raises:
        UsageError: See `obtain`; or the file is missing and cannot or must not be downloaded.
    """
    try:
        return build(), []
    except MissingDataError as missing:
        if missing.raw is None or missing.raw.url is None or not missing.may_download:
            raise
        raw, show_progress = missing.raw, missing.show_progress
    lines = obtain(raw, show_progress=show_progress)
    return build(), lines
