"""The command `recbole-lisa compare`: two runs, user by user, with paired bootstrap intervals."""

import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from recbole_lisa.cli.arguments import UsageParser
from recbole_lisa.errors import UsageError, check_header
from recbole_lisa.files import readable
from recbole_lisa.progress import progress_bar

RESAMPLES = 9999
IDS = ["user_id", "item_id"]
TRAITS = ("history_length", "popularity")  # columns that are no metrics, see `per_user_table`
_RANGES = {"rank": (1, np.inf), **dict.fromkeys(TRAITS, (0, np.inf))}
_RANGES |= dict.fromkeys(("hit", "mrr", "ndcg", "recall", "precision", "map"), (0, 1))
_ROUNDING = 1e-6
_EPILOG = """\
A and B are files of runs with --per_user_file=FILE.csv or FILE.json: that file, or the result_file. Users are matched
by their raw ids. low and high are the ends of the 95% interval of B - A. Ranks count from 1: there below 0 is better.
"""


def main(arguments: Sequence[str]) -> int:
    """Print the difference of two runs in each metric, with the arguments after `compare`; return 0."""
    parser = UsageParser("recbole-lisa compare", "Print the difference of two runs in each metric.", _EPILOG)
    for name in ("A", "B"):
        parser.add_argument(name, type=Path)
    options = parser.parse_args(arguments)
    protocols = [_protocol(path) for path in (options.A, options.B)]
    if None not in protocols and protocols[0] != protocols[1]:
        print("warning: A has the protocol {}, B has {}".format(*protocols), file=sys.stderr)
    a, b = read_per_user(options.A), read_per_user(options.B)
    print(compare(a, b).to_string(float_format="{:.4f}".format))
    for name, one, other in (("A", a, b), ("B", b, a)):
        if alone := [str(metric) for metric in one.columns.difference([*other, *TRAITS], sort=False)]:
            print(f"not compared, only in {name}: {', '.join(alone)}", file=sys.stderr)
    return 0


def _protocol(path: Path) -> str | None:
    """The protocol in a result_file; None for another file, which `read_per_user` checks."""
    with suppress(OSError, ValueError, AttributeError, RecursionError):
        return str(json.loads(readable(path).read_bytes()).get("protocol")) if path.suffix == ".json" else None
    return None


def read_per_user(path: Path) -> pd.DataFrame:
    """Metrics and TRAITS by (user_id, item_id), sorted by user; a UsageError if `path` is not a file of `main`."""
    try:
        if path.suffix == ".csv":
            check_header(path, pd.read_csv(path, header=None, nrows=1, dtype=str).loc[0])
            types = dict.fromkeys(IDS, str)
            table = pd.read_csv(path, dtype=types, keep_default_na=False, float_precision="round_trip")
        elif "config" in (content := json.loads(readable(path).read_bytes())):  # a result
            if not content.get("per_user_file"):
                raise UsageError(f"'{path}' names no per_user_file: run `evaluate` with --per_user_file=FILE")
            named = read_per_user(Path(content["per_user_file"]))
            check_means(named, content, f"'{content['per_user_file']}', which '{path}' names,")
            return named
        else:
            table = pd.DataFrame(content)
        for name in table.columns.difference(IDS):
            numbers = pd.to_numeric(table[name], errors="coerce")
            low, high = _RANGES.get(str(name).partition("@")[0].removesuffix("_masked"), (-np.inf, np.inf))
            is_right = np.isfinite(numbers) & (numbers >= low - _ROUNDING) & (numbers <= high + _ROUNDING)
            for row in np.flatnonzero(~is_right)[:1]:
                place = f"line {row + 2}" if path.suffix == ".csv" else f"entry {row + 1}"
                wrong = f"not from {low:g} to {high:g}" if np.isfinite(numbers.iloc[row]) else "no finite number"
                raise UsageError(f"'{path}', {place}, column {name}: {str(table[name].iloc[row])!r} is {wrong}")
        if table.empty:
            raise UsageError(f"'{path}' has no targets: name the per_user_file of a finished run")
        indexed: pd.DataFrame = table.set_index(IDS).sort_index(level=0, sort_remaining=False, kind="stable")
    except UsageError:
        raise
    except OSError as error:
        raise UsageError(f"'{path}' cannot be read: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise UsageError(f"'{path}' is neither a per_user_file nor a result_file of a run") from error
    return indexed


def check_means(table: pd.DataFrame, result: Mapping[str, Any], what: str) -> None:
    """A UsageError where metrics by target have other means than the result of their run, within its rounding."""
    places = result["config"].get("metric_decimal_place", 4)
    rounding = 0.5 * 10.0 ** -min(places, 15) + 1e-9
    for name, value in (result.get("test") or {}).items():
        if name in table and isinstance(value, int | float) and abs(table[name].mean() - value) > rounding:
            later = (
                f"{what} has {name} {table[name].mean():.6g}, the run had {value:.6g}: another run has written it since"
            )
            raise UsageError(f"{later}; repeat the run, or give the files of --per_user_file themselves")


def compare(a: pd.DataFrame, b: pd.DataFrame, seed: int = 0) -> pd.DataFrame:
    """Means `A` and `B`, `B - A` and the ends `low` and `high` of its interval, by metric, of two `read_per_user`.

    A resample draws whole users with replacement, the same ones for both. With s_u the sum of the differences of user u
    and n_u the number of its targets, it has the difference sum_u s_u / sum_u n_u.

    Raises:
        UsageError: Users or targets differ, or no metric is in both.
    """
    names = [str(name) for name in a if name in b and name not in TRAITS]
    if not names:
        raise UsageError(f"no metric is in both files: A has {', '.join(map(str, a))}, B has {', '.join(map(str, b))}")
    if not a.index.equals(b.index):
        odd = a.index.symmetric_difference(b.index)
        rows = zip(chain(a.index, [None]), chain(b.index, [None]), strict=False)  # without odd ones, a line is repeated
        user, item = odd[0] if len(odd) else next(min(filter(None, pair)) for pair in rows if pair[0] != pair[1])
        example = f"{len(odd)} are in one alone, such as" if len(odd) else "the first difference is at"
        place = f"{example} item {item!r} of user {user!r}"
        raise UsageError(f"the files are of different users, targets or orders of targets: {place}")
    users = (b[names] - a[names]).groupby(level=0)
    sums, counts = users.sum().to_numpy(float), users.size().to_numpy()  # (U, M), (U,)
    rng, draws = np.random.default_rng(seed), np.empty((RESAMPLES, len(names)))
    for draw in progress_bar(draws, "resample"):
        times = np.bincount(rng.integers(len(counts), size=len(counts)), minlength=len(counts))
        draw[:] = times @ sums / (times @ counts)
    low, high = np.quantile(draws, [0.025, 0.975], axis=0)
    means = {"A": a[names].mean(), "B": b[names].mean(), "B - A": sums.sum(axis=0) / len(a)}
    table: pd.DataFrame = pd.DataFrame({**means, "low": low, "high": high})
    return table
