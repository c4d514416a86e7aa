"""The command `recbole-lisa recommend`."""

import argparse
import sys
from collections.abc import Iterator, Sequence
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from recbole_lisa.cli import imported
from recbole_lisa.cli.arguments import UsageParser, positive, seconds
from recbole_lisa.datasets.histories import UserHistory, read_user_histories
from recbole_lisa.errors import UsageError
from recbole_lisa.progress import progress_bar
from recbole_lisa.serving import Recommender
from recbole_lisa.serving.inputs import POLICIES, numbers_of
from recbole_lisa.serving.tables import check_table, read_ids, write_recommendations

_USERS_AT_ONCE = 256
_EPILOG = """\
Input: one interaction a row, with the columns user_id, item_id and, to order them, timestamp (seconds); without a
timestamp the order of the rows counts. Users may be new ones. Without --input, every user of the checkpoint's data set
gets a list, from all of the history. A model with query_time needs the timestamps, and is asked --at one time for all.
Output: the columns user_id, rank, item_id, score, and title where the export has titles.
"""


def main(arguments: Sequence[str]) -> int:
    """Recommend for every user of a table or of the data set, with the arguments after `recommend`; return 0."""
    options = _parser().parse_args(arguments)
    if (options.checkpoint is None) == (options.export is None):
        raise UsageError("give one of --checkpoint FILE and --export DIR")
    if options.export is not None and options.input is None:
        raise UsageError("--export holds no users: give their histories with --input, or use --checkpoint")
    _check_effects(options)
    for source in (options.input, options.candidates):
        check_table(options.output, overwrite=options.overwrite, source=source)
    candidates = None if options.candidates is None else UserHistory("", read_ids(options.candidates), None)
    recommender, users = _sources(options)
    users = [_known(recommender, user, options.on_unknown, f"user '{user.user}'") for user in users]
    if candidates is not None:
        candidates = _known(recommender, candidates, options.on_unknown, f"'{options.candidates}'")
    if recommender.reads_query_time:
        _check_query_time(options.at, users)
    settings: dict[str, Any] = {"k": options.k, "at": options.at, "filter_seen": not options.keep_seen}
    settings |= {"candidates": None if candidates is None else candidates.items, "on_unknown": "skip"}
    with_times, empty = recommender.needs_times and users[0].times is not None, 0

    def rows() -> Iterator[tuple[str, Sequence[str], Sequence[float]]]:
        nonlocal empty
        with progress_bar(description="recommend", total=len(users), unit=" users", keep=True) as bar:
            for start in range(0, len(users), _USERS_AT_ONCE):
                batch = users[start : start + _USERS_AT_ONCE]
                times = [user.times for user in batch] if with_times else None
                answers = recommender.recommend([user.items for user in batch], times=times, **settings)
                for user, answer in zip(batch, answers, strict=True):
                    empty += not answer.items
                    yield user.user, answer.items, answer.scores
                bar.update(len(batch))

    titles = recommender.bundle.titles
    output, total = write_recommendations(options.output, rows(), titles, overwrite=options.overwrite)
    print(f"{output}: {total:,} rows for {len(users) - empty:,} users; {empty:,} users without recommendations")
    return 0


def _check_effects(options: argparse.Namespace) -> None:
    """Refuse options without effect, and give those of --input their defaults."""
    if options.export is not None and options.data_path is not None:
        raise UsageError("--data_path is the folder of a checkpoint's data set, an export reads none: leave it out")
    readers = {name: getattr(options, name) for name in ("user", "item", "time", "on_unknown")}
    idle = [name for name, value in readers.items() if value is not None and options.input is None]
    if idle and not (idle == ["on_unknown"] and options.candidates is not None):
        raise UsageError(f"--{idle[0]} is about the rows of --input: give one, or leave --{idle[0]} out")
    for name, default in {"user": "user_id", "item": "item_id", "on_unknown": "raise"}.items():
        setattr(options, name, readers[name] or default)


def _check_query_time(at: float | None, users: Sequence[UserHistory]) -> None:
    """Print the time of the question where it is now; a UsageError for a user with newer items than a given time."""
    if at is None:
        print(f"query time: now, {datetime.now(timezone.utc):%Y-%m-%d %H:%M} UTC; --at sets it")
        return
    for user in users:
        if user.times and user.times[-1] > at:
            moments = f"{at:.15g} is before the newest item of user '{user.user}', {user.times[-1]:.15g}"
            raise UsageError(f"--at {moments} (seconds since 1970): ask later, or leave out what came after it")


def _known(recommender: Recommender, history: UserHistory, on_unknown: str, where: str) -> UserHistory:
    """A history without the items that the model does not know; a UsageError if there are some under raise."""
    warn = partial(print, "warning:", file=sys.stderr)
    _, known = numbers_of(recommender.ids, history.items, on_unknown, where, warn=warn)
    kept = known.nonzero()[0]
    times = None if history.times is None else [history.times[n] for n in kept]
    return UserHistory(history.user, [history.items[n] for n in kept], times)


def _sources(options: argparse.Namespace) -> tuple[Recommender, list[UserHistory]]:
    """The model, and the users of the table or of the checkpoint's data set."""
    if options.export is not None:
        recommender = Recommender.load(options.export)
    else:
        saved = imported("saved")  # an export serves where RecBole is not installed
        if options.input is None:
            bundle, dataset = saved.bundle_of_checkpoint(options.checkpoint, data_path=options.data_path)
            return Recommender(bundle), _users_of(dataset)
        recommender = Recommender(saved.load_bundle(options.checkpoint, data_path=options.data_path))
    users = read_user_histories(options.input, user=options.user, item=options.item, time=options.time)
    if users[0].times is None:
        order = "the order of its rows is that of time; --time names another column"
        print(f"note: '{options.input}' has no column timestamp: {order}", file=sys.stderr)
    return recommender, users


def _users_of(dataset: Any) -> list[UserHistory]:
    """Users of a data set with all interactions, oldest first; times from the first one, if none for query_time."""
    store = dataset.histories
    user_ids, item_ids = dataset.field2id_token[dataset.uid_field], dataset.field2id_token[dataset.iid_field]
    users = []
    for n, user in enumerate(progress_bar(store.users, "histories", unit=" users")):
        rows = slice(store.offsets[n], store.offsets[n + 1])
        times = np.cumsum(store.gaps[rows], dtype=np.float64) if store.times is None else store.times[rows]
        users.append(UserHistory(str(user_ids[user]), list(map(str, item_ids[store.items[rows]])), times.tolist()))
    return users


def _parser() -> UsageParser:
    parser = UsageParser("recbole-lisa recommend", "Write the best items for each user.", _EPILOG)
    parser.add_argument("--checkpoint", type=Path, metavar="FILE", help="a .pth file of a run")
    parser.add_argument("--export", type=Path, metavar="DIR", help="folder of recbole-lisa export")
    parser.add_argument("--input", type=Path, metavar="FILE", help="interactions: .csv, .tsv, .inter or .parquet")
    parser.add_argument("--output", type=Path, required=True, metavar="FILE", help=".csv, .tsv or .parquet")
    parser.add_argument("--overwrite", action="store_true", help="replace an output that exists")
    parser.add_argument("--k", type=positive, default=10, help="items for each user (default: 10)")
    meaning = "with query_time, the time of the question: seconds since 1970 or a date in UTC (default: now)"
    parser.add_argument("--at", type=seconds, metavar="TIME", help=meaning)
    parser.add_argument("--keep_seen", action="store_true", help="items of the history may be recommended again")
    parser.add_argument("--candidates", type=Path, metavar="FILE", help="choose from these items, one id a line")
    meaning = "unknown items: raise stops, warn and skip leave them out (default: raise)"
    parser.add_argument("--on_unknown", choices=POLICIES, help=meaning)
    meaning = "folder of the checkpoint's data set, if it moved; with --input only a file of 0.1.0 reads it"
    parser.add_argument("--data_path", metavar="DIR", help=meaning)
    columns = parser.add_argument_group("columns of the input")
    for role, default in (("user", "user_id"), ("item", "item_id")):
        columns.add_argument(f"--{role}", metavar="COLUMN", help=f"default: {default}")
    columns.add_argument("--time", metavar="COLUMN", help="default: timestamp, where the input has it")
    return parser
