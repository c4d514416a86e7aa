"""Options that the tables share, the checks before anything is trained, and the runs of a table."""

import argparse
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from benchmarks.paper.paper import Row
from benchmarks.paper.ranking import Cluster, Job, check_folders, jobs, run_all
from recbole_lisa.cli.arguments import UsageParser, parse_settings
from recbole_lisa.config.config import LISAConfig
from recbole_lisa.errors import UsageError, did_you_mean
from recbole_lisa.files import check_output

_OWN = {
    "seed": "--seeds",
    "protocol": "nothing: it is the paper's",
    "result_file": "--runs",
    "checkpoint_dir": "--runs",
    "codebook_plot": "nothing: runs would draw over each other",
    "resume": "nothing: runs go on by themselves",
    "show_progress": "nothing: each run writes a log",
}


@dataclass(frozen=True)
class Table:
    """What was asked for.

    Attributes:
        options: The options by name.
        settings: Settings of all runs, as texts.
    """

    options: argparse.Namespace
    settings: dict[str, str]

    def shared(self) -> list[str]:
        """The settings as words that mean the same in the folder of a run."""
        return [f"--{key}={_absolute(key, value)}" for key, value in self.settings.items()]

    def public(self) -> list[str]:
        """The settings as words for the shell, for a page, without the folders of this machine."""
        shown = {**self.settings, **({"data_path": "DATA"} if "data_path" in self.settings else {})}
        return [shlex.quote(f"--{key}={value}") for key, value in shown.items()]

    def jobs(self, rows: Mapping[str, Row], folder: str = "") -> list[Job]:
        """A run for each row and seed, in `folder` of all runs.

        Raises:
            UsageError: See `check_folders`.
        """
        options = self.options
        runs = Path(options.runs, folder).resolve()
        made = list(jobs(options.dataset, rows, options.seeds, runs, self.shared()))
        check_folders(made)
        return made

    def run(self, todo: Sequence[Job]) -> list[Job]:
        """Run what is not finished, unless only the page is wanted; the jobs that failed."""
        options = self.options
        if options.only_page:
            return []
        cluster = None if options.address is None else Cluster(options.address, options.gpus_per_run)
        return run_all(todo, parallel=options.parallel, threads=options.threads, cluster=cluster)


def table_parser(name: str, description: str) -> UsageParser:
    """A parser with the options of every table."""
    parser = UsageParser(f"python -m benchmarks paper {name}", description)
    add = parser.add_argument
    add("-d", "--dataset", required=True, help="data set name")
    add("--seeds", nargs="+", type=int, default=[1, 2, 3], help="default: 1 2 3")
    add("--runs", default="runs", help="folder of the runs, kept to go on later (default: runs)")
    add("--output", default="results", help="folder of the page (default: results)")
    add("--overwrite", action="store_true", help="write an existing page again; the notes at its end stay")
    add("--parallel", type=int, default=1, help="runs at a time on this machine, without Ray (default: 1)")
    add("--threads", type=int, default=1, help="CPU threads, and with Ray cores, of each run (default: 1)")
    add("--address", help="run through Ray, as many at a time as fit: local, auto or HOST:PORT of a cluster")
    add("--gpus_per_run", type=float, help="GPUs of a run through Ray, or a share (default: 1 where there is one)")
    add("--only_page", action="store_true", help="train nothing, write the page of what is there")
    return parser


def parse_table(parser: UsageParser, argv: Sequence[str], *, own: Mapping[str, str]) -> Table:
    """Read the words and check what all tables share.

    Args:
        parser: See `table_parser`.
        argv: The words.
        own: Settings that this table chooses itself -> the option to use instead.

    Raises:
        UsageError: A word, an option or a setting is wrong.
    """
    options, words = parser.parse_known_args(argv)
    if min(options.parallel, options.threads) < 1:
        raise UsageError(f"--parallel and --threads are at least 1, got {options.parallel} and {options.threads}")
    if len(set(options.seeds)) < len(options.seeds):
        raise UsageError(f"--seeds are {' '.join(map(str, options.seeds))}: name each one once")
    if options.gpus_per_run is not None and not options.gpus_per_run >= 0:
        raise UsageError(f"--gpus_per_run is {options.gpus_per_run:g}, it must be at least 0")
    if options.address is None and options.gpus_per_run is not None:
        raise UsageError(f"--gpus_per_run={options.gpus_per_run:g} is for Ray: add --address=local, or leave it out")
    if options.address is not None and options.parallel != 1:
        raise UsageError(f"--parallel={options.parallel} is without Ray: leave it or --address={options.address} out")
    if find_spec("matplotlib") is None:
        raise UsageError("the page's plot needs matplotlib: pip install 'recbole-lisa[bench]'")
    settings = parse_settings(words)
    reserved = {**_OWN, **own}
    for key in reserved.keys() & settings.keys():
        raise UsageError(f"'--{key}' is no setting of all runs: use {reserved[key]}")
    return Table(options, settings)


def check_rows(table: Table, rows: Iterable[Row], *, page: str) -> None:
    """Build every configuration, and look where the page goes: a mistake should show before hours of training.

    Args:
        table: What was asked for.
        rows: What is run.
        page: Name of the page's file.

    Raises:
        UsageError: A setting is wrong, or the page exists.
    """
    check_output(Path(table.options.output, page), overwrite=table.options.overwrite)
    seeds = table.options.seeds
    for index, row in enumerate(rows):
        for seed in seeds if index == 0 else seeds[:1]:
            settings = {**table.settings, **row.settings, "seed": seed}
            LISAConfig(row.model, table.options.dataset, protocol="paper", command_line=settings)


def choose_rows(names: Sequence[str], rows: Mapping[str, Row]) -> dict[str, Row]:
    """The named rows, in the order of the names.

    Raises:
        UsageError: A name is unknown.
    """
    for name in names:
        if name not in rows:
            raise UsageError(f"unknown row '{name}': known are {', '.join(rows)}.{did_you_mean(name, rows)}")
    return {name: rows[name] for name in names}


def _absolute(key: str, value: str) -> str:
    """Each run starts in a folder of its own, so that a relative path of the user must not move with it."""
    return str(Path(value).resolve()) if key == "data_path" else value
