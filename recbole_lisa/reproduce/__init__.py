"""`recbole-lisa reproduce ranking`: the paper's ranking table, every row from a frozen configuration."""

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from recbole_lisa.arguments import UsageParser
from recbole_lisa.errors import UsageError, did_you_mean

NAMES = ("ranking",)


def main(argv: Sequence[str]) -> int:
    """Run what is missing of a table and write its page.

    Args:
        argv: words after `reproduce`: the name of the table, its options, and settings for all runs.

    Returns:
        0, or 1 when a run failed.

    Raises:
        UsageError: an unknown table, row or option, or matplotlib is missing.
    """
    name = argv[0] if argv else ""
    if name not in NAMES:
        raise UsageError(f"unknown table '{name}': known are {', '.join(NAMES)}.{did_you_mean(name, NAMES)}")
    return reproduce_ranking(argv[1:])


def reproduce_ranking(argv: Sequence[str]) -> int:
    """`recbole-lisa reproduce ranking --dataset=D [--rows ...] [--seeds ...] [--key=value ...]`; see main."""
    from recbole_lisa.cli import parse_settings
    from recbole_lisa.config import LISAConfig
    from recbole_lisa.reproduce.page import write_page
    from recbole_lisa.reproduce.paper import ROWS
    from recbole_lisa.reproduce.ranking import jobs, results, run_all

    parser = UsageParser(prog="recbole-lisa reproduce ranking", allow_abbrev=False)
    parser.add_argument("-d", "--dataset", required=True, help="data set name")
    parser.add_argument("--rows", nargs="+", default=list(ROWS), metavar="ROW", help=f"default: {' '.join(ROWS)}")
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3], help="default: 1 2 3")
    parser.add_argument("--runs", default="runs", help="folder of the runs, kept to go on later (default: runs)")
    parser.add_argument("--output", default="results", help="folder of the page (default: results)")
    parser.add_argument("--parallel", type=int, default=1, help="runs at a time (default: 1)")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads of each run (default: 1)")
    parser.add_argument("--only_page", action="store_true", help="train nothing, write the page of what is there")
    options, words = parser.parse_known_args(argv)
    for row in options.rows:
        if row not in ROWS:
            raise UsageError(f"unknown row '{row}': known are {', '.join(ROWS)}.{did_you_mean(row, ROWS)}")
    if min(options.parallel, options.threads) < 1:
        raise UsageError(f"--parallel and --threads are at least 1, got {options.parallel} and {options.threads}")
    if find_spec("matplotlib") is None:
        raise UsageError("the page's plot needs matplotlib: pip install 'recbole-lisa[bench]'")
    settings = parse_settings(words)
    own = {"seed": "--seeds", "model": "--rows", "protocol": "nothing: it is the paper's", "result_file": "--runs"}
    for key in own.keys() & settings.keys():
        raise UsageError(f"'--{key}' is no setting of all runs: use {own[key]}")
    for row in options.rows:  # a mistake should show before hours of training
        LISAConfig(ROWS[row].model, options.dataset, protocol="paper", command_line={**settings, **ROWS[row].settings})
    shared = [f"--{key}={_absolute(key, value)}" for key, value in settings.items()]
    todo = list(jobs(options.dataset, options.rows, options.seeds, Path(options.runs).resolve(), shared))
    failed = [] if options.only_page else run_all(todo, parallel=options.parallel, threads=options.threads)
    public = [f"--{key}={'DATA' if key == 'data_path' else value}" for key, value in settings.items()]
    for file in write_page(options.dataset, results(todo), public, Path(options.output)):
        print(file)
    return 1 if failed else 0


def _absolute(key: str, value: str) -> str:
    """Each run starts in a folder of its own, so that a relative path of the user must not move with it."""
    return str(Path(value).resolve()) if key == "data_path" else value
