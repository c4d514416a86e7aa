"""The command `recbole-lisa download`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from recbole_lisa.cli.arguments import UsageParser
from recbole_lisa.config.properties import properties_path
from recbole_lisa.config.schema import read_yaml
from recbole_lisa.datasets.obtain import RawData, obtain
from recbole_lisa.errors import UsageError, did_you_mean
from recbole_lisa.files import check_output


def main(words: Sequence[str]) -> int:
    """Download and convert the data set that the words name, and print what was done.

    Args:
        words: The words after `download`.

    Returns:
        0.

    Raises:
        UsageError: There is no such data set or address; see also `obtain`.
    """
    known = sorted(file.stem for file in (properties_path() / "dataset").glob("*.yaml"))
    parser = UsageParser("recbole-lisa download", "Download a public data set, check it and write its atomic file.")
    parser.add_argument("dataset", help=", ".join(known))
    parser.add_argument("--data_path", type=Path, default=Path("dataset"), help="the folder above (default: dataset)")
    parser.add_argument("--archive_url", help="another address of the raw file, such as a mirror")
    parser.add_argument("--archive_checksum", help="its checksum, md5:... or sha256:...")
    parser.add_argument("--overwrite", action="store_true", help="replace an atomic file that is there")
    options = parser.parse_args(words)
    dataset = options.dataset
    if dataset not in known:
        raise UsageError(f"unknown data set '{dataset}': known are {', '.join(known)}.{did_you_mean(dataset, known)}")
    settings = read_yaml(properties_path() / "dataset" / f"{dataset}.yaml")
    raw = RawData.from_settings(dataset, options.data_path / dataset, settings)
    raw = replace(raw, url=options.archive_url or raw.url, checksum=options.archive_checksum or raw.checksum)
    target = raw.folder / f"{dataset}.inter"
    check_output(target, overwrite=options.overwrite)
    print("\n".join(obtain(raw, overwrite=options.overwrite, show_progress=True)))
    return 0
