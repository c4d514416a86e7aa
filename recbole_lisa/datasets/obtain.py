"""From the name of a public data set to its atomic file: download, check, convert.

The keys `archive`, `source`, `conversion`, `archive_url` and `archive_checksum` of a data set's yaml file say how.
"""

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pooch

from recbole_lisa.config.properties import properties_path
from recbole_lisa.datasets.conversion import convert
from recbole_lisa.datasets.download import DownloadError, download
from recbole_lisa.datasets.layouts import parse_conversion
from recbole_lisa.errors import UsageError, did_you_mean
from recbole_lisa.files import locked, new_folder

_FORM = "tab-separated lines under the header user_id:token item_id:token timestamp:float"


def known_datasets() -> list[str]:
    """Names of the data sets that have a yaml file."""
    return sorted(file.stem for file in (properties_path() / "dataset").glob("*.yaml"))


def ensure_data(config: Mapping[str, Any]) -> list[str]:
    """Fetch and convert a missing public data set of a run, if it may be downloaded; else see `check_data`.

    Returns what was done, line by line; nothing where the file exists.
    """
    folder, dataset = Path(config["data_path"]), config["dataset"]
    is_missing = not all(path.is_file() for path in interaction_files(config))
    is_public = config["benchmark_filename"] is None and dataset in known_datasets()
    if is_missing and is_public and config["archive_url"] and config["download"]:
        waiting = f"another process fetches '{folder}': this one waits for its end"
        with new_folder(folder.parent), locked(folder.with_name(f".{folder.name}.lock"), waiting=waiting):
            if not all(path.is_file() for path in interaction_files(config)):
                return obtain(folder, config, show_progress=bool(config["show_progress"]))
    check_data(config)
    return []


def interaction_files(config: Mapping[str, Any]) -> list[Path]:
    """The file of interactions, or those of training, validation and test (`benchmark_filename`)."""
    folder, dataset = Path(config["data_path"]), config["dataset"]
    parts = config["benchmark_filename"]
    return [folder / f"{dataset}.inter"] if parts is None else [folder / f"{dataset}.{part}.inter" for part in parts]


def check_data(config: Mapping[str, Any]) -> None:
    """Refuse a missing file of interactions by a `UsageError` that says where it belongs and how to make it."""
    folder, dataset, known = Path(config["data_path"]), config["dataset"], known_datasets()
    missing = [path for path in interaction_files(config) if not path.is_file()]
    if not missing:
        return
    path = missing[0]
    if path.is_dir():
        raise UsageError(f"{path} is a folder, it must be a file ({_FORM})")
    if config["benchmark_filename"] is not None:
        raise UsageError(f"there is no file {path} ({_FORM}), which benchmark_filename names: put it there")
    if dataset in known and config["conversion"]:
        raise UsageError(
            f"data set '{dataset}' needs the file {path}, which does not exist: {_by_hand(folder, config)} "
            f"(or write the file yourself: {_FORM}; or set data_path to the folder above)"
        )
    if parts := sorted(file.name for file in folder.glob("*.inter") if file.match(f"{folder.name}.?*.inter")):
        raise UsageError(f"there is no file {path}, but {', '.join(parts)}: name the parts in benchmark_filename")
    neighbours = [path.stem for path in folder.parent.glob("*/*.inter") if path.stem == path.parent.name]
    hint = did_you_mean(dataset, [*known, *sorted({*neighbours} - {dataset})])
    raise UsageError(
        f"there is no file {path} ({_FORM}), and '{dataset}' is none of the data sets with settings "
        f"({', '.join(known)}): put it there, or set data_path to the folder above it.{hint}"
    )


def _by_hand(folder: Path, settings: Mapping[str, Any]) -> str:
    """What the user can do without the download, as part of a sentence."""
    format_name, *options = shlex.split(settings["conversion"])
    command = ["recbole-lisa", "convert", format_name, settings["archive"], "--output", str(folder), *options]
    return f"get {settings['archive']} from {settings['source']} and run: {shlex.join(command)}"


def obtain(
    folder: Path, settings: Mapping[str, Any], *, overwrite: bool = False, show_progress: bool = False
) -> list[str]:
    """Download the raw file, unless it is beside the data set's folder already, and convert it.

    `settings` are the keys of the data set's yaml file. Returns what was done, line by line.
    """
    archive, url, checksum = folder.parent / settings["archive"], settings["archive_url"], settings["archive_checksum"]
    if archive.exists():
        done = f"found {archive}"
        algorithm, _, digits = (checksum or "").partition(":")
        if checksum and (actual := pooch.file_hash(str(archive), alg=algorithm)) != digits.lower():
            reason = f"its {algorithm} is {actual}, its publisher's {digits}"
            raise UsageError(f"{archive} is not what its publisher gives, {reason}: delete it to download it again")
    elif url is None:
        raise UsageError(f"'{folder.name}' has no address to download from: {_by_hand(folder, settings)}")
    else:
        try:
            download(url, archive, checksum, show_progress=show_progress)
        except DownloadError as error:
            raise DownloadError(f"{error}. Or {_by_hand(folder, settings)}") from error
        checked = "its checksum is right" if checksum else "its publisher names no checksum"
        done = f"downloaded {url} to {archive}, {checked}"
    layout = parse_conversion(settings["conversion"])
    return [done, *convert(archive, folder, layout, overwrite=overwrite, show_progress=show_progress).lines()]
