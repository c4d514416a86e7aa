"""The command `recbole-lisa download`."""

from collections.abc import Sequence
from pathlib import Path

from recbole_lisa.cli.arguments import UsageParser
from recbole_lisa.config.properties import properties_path
from recbole_lisa.config.schema import read_yaml
from recbole_lisa.datasets.obtain import known_datasets, obtain
from recbole_lisa.errors import UsageError, did_you_mean
from recbole_lisa.files import check_output


def main(arguments: Sequence[str]) -> int:
    """Download and convert a public data set, with the arguments after `download`; return 0."""
    known = known_datasets()
    parser = UsageParser("recbole-lisa download", "Download a public data set, check it and write its atomic file.")
    parser.add_argument("dataset", help=", ".join(known))
    parser.add_argument("--data_path", type=Path, default=Path("dataset"), help="the folder above (default: dataset)")
    parser.add_argument("--archive_url", help="another address of the raw file, such as a mirror")
    parser.add_argument("--archive_checksum", help="its checksum, md5:... or sha256:...")
    parser.add_argument("--overwrite", action="store_true", help="replace an existing atomic file")
    options = parser.parse_args(arguments)
    dataset, folder = options.dataset, options.data_path / options.dataset
    if dataset not in known:
        raise UsageError(f"unknown data set '{dataset}': known are {', '.join(known)}.{did_you_mean(dataset, known)}")
    settings = read_yaml(properties_path() / "dataset" / f"{dataset}.yaml")
    for key in ("archive_url", "archive_checksum"):
        settings[key] = getattr(options, key) or settings[key]
    check_output(folder / f"{dataset}.inter", overwrite=options.overwrite)
    print("\n".join(obtain(folder, settings, overwrite=options.overwrite, show_progress=True)))
    return 0
