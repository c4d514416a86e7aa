"""The command `recbole-lisa report`: one HTML page about one or several runs, which opens without network.

`report.html` beside this file draws the page, with plotly.js inside, from the data that this file collects.
"""

import json
import re
import sys
from collections.abc import Mapping, Sequence
from copy import copy
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from recbole_lisa import __version__
from recbole_lisa.cli import imported
from recbole_lisa.cli.arguments import UsageParser
from recbole_lisa.cli.compare_command import IDS, TRAITS, check_means, read_per_user
from recbole_lisa.errors import UsageError, shown
from recbole_lisa.files import atomic_writer, check_output, readable, resolved

_NEEDED = ("model", "dataset", "protocol", "seed", "test", "loss", "config")
_KINDS: dict[str, Any] = {
    **dict.fromkeys(("model", "dataset", "protocol"), str), "seed": int, "config": dict, "test": dict | None,
    **dict.fromkeys(("checkpoint", "log", "per_user_file"), str | None),
    **dict.fromkeys(("loss", "codebooks", "valid_curve", "curve"), list),
}  # fmt: skip
_BINS, _USERS, _SHOWN, _K = 5, 6, 10, 5
_EPILOG = """\
Each RUN.json is the result_file of a run. Metrics by user come from its per_user_file; where that is missing, and for
the recommendations to a few users, its checkpoint is loaded with its data.

  recbole-lisa report lisa.json sasrec.json --output report.html
"""


def main(arguments: Sequence[str]) -> int:
    """Write the page about the runs, with the arguments after `report`; return 0."""
    parser = UsageParser("recbole-lisa report", "Write one HTML page about runs: curves, metrics, users.", _EPILOG)
    add = parser.add_argument
    add("results", nargs="+", type=Path, metavar="RUN.json", help="the result_file of a run")
    add("--output", type=Path, required=True, metavar="FILE", help="the page, .html")
    add("--titles", type=Path, metavar="FILE", help=".csv or .tsv with item_id and title; default: the .item file")
    add("--data_path", metavar="DIR", help="folder of the data set, if it moved")
    add("--overwrite", action="store_true", help="replace an output that exists")
    options = parser.parse_args(arguments)
    if options.output.suffix != ".html":
        raise UsageError(f"'{options.output}' must end in .html")
    results: dict[Path, Any] = {}
    for path in options.results:
        if resolved(path) in map(resolved, results):
            print(f"warning: '{path}' is given twice: it is shown once", file=sys.stderr)
        else:
            results[path] = read_result(path)
    check_output(options.output, overwrite=options.overwrite)
    titles = imported("saved").read_titles(options.titles) if options.titles else {}
    runs = collect(results, titles, options.data_path)
    page = render({"version": __version__, "runs": runs})
    with atomic_writer(options.output, overwrite=options.overwrite) as stream:
        stream.write(page.encode(errors="replace"))
    print(f"{stream.path}: {len(runs)} {'runs' if len(runs) > 1 else 'run'}, {len(page) / 1e6:.1f} MB")
    return 0


def collect(results: Mapping[Path, Any], titles: Mapping[str, str], data_path: str | None) -> list[dict[str, Any]]:
    """Each result with its file, statistics, users and notes on what is missing; a warning for each note."""
    first, edges, targets = None, None, None
    runs: list[dict[str, Any]] = []
    for path, result in results.items():
        table, users, notes = _evaluated(path, result, titles, data_path, targets)
        if runs and table is not None and first is not None:
            notes += _obstacles(result, table, runs[0], first)
        for note in notes:
            print(f"warning: '{path}': {note}", file=sys.stderr)
        run = {**result, "file": str(path), "users": users, "notes": notes}
        if table is not None:
            edges = edges or {trait: _edges(table[trait]) for trait in TRAITS if trait in table}
            run |= statistics(table, edges, first)
        if not runs:
            first, targets = table, [(user["user"], user["item"]) for user in users]
        runs.append(run)
    return runs


def read_result(path: Path) -> dict[str, Any]:
    """The result of a run; a UsageError if `path` is not its result_file."""
    try:
        result = json.loads(readable(path).read_bytes())
    except OSError as error:
        raise UsageError(f"'{path}' cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"'{path}' is no JSON ({error}): name files of --result_file") from error
    if missing := [key for key in _NEEDED if not isinstance(result, dict) or key not in result]:
        raise UsageError(f"'{path}' is no result_file of a run, it has no '{missing[0]}': name files of --result_file")
    for key, kind in _KINDS.items():
        if key in result and not isinstance(result[key], kind):
            raise UsageError(f"'{path}' is damaged, its {key} is {shown(result[key])}: name files of --result_file")
    return dict(result)


def render(data: Mapping[str, Any]) -> str:
    """The page: the template with plotly.js and the data inside."""
    text = json.dumps(data, default=str).replace("<", "\\u003c")  # no text of the data ends the script
    template = Path(__file__).with_name("report.html").read_text(encoding="utf-8")
    head, middle, end = re.split(r"/\*plotly\*/|/\*data\*/", template)
    return "".join((head, import_module("plotly.offline").get_plotlyjs(), middle, text, end))


def statistics(table: pd.DataFrame, edges: Mapping[str, Any], first: pd.DataFrame | None) -> dict[str, Any]:
    """Means with half-widths of their 95% intervals: all targets, the difference to `first`, and by bins of traits."""
    values = table[_metrics(table)]
    shown: dict[str, Any] = {"metrics": mean_and_error(values), "by": {}}
    if first is not None and first.index.equals(table.index):
        both = [name for name in values if name in first]
        shown["difference"] = mean_and_error(values[both] - first[both])
    for trait in (name for name in edges if name in table):
        bins = pd.cut(table[trait], edges[trait])
        shown["by"][trait] = [
            {"from": int(one.left) + 1, "to": int(one.right), "targets": len(part), **mean_and_error(part)}
            for one, part in values.groupby(bins, observed=True)
        ]
    return shown


def _metrics(table: pd.DataFrame) -> list[str]:
    return [name for name in map(str, table) if name not in TRAITS and not name.startswith("rank")]


def _obstacles(
    result: Mapping[str, Any], table: pd.DataFrame, base: Mapping[str, Any], first: pd.DataFrame
) -> list[str]:
    """Why the differences of a run to the first one are missing or mean little."""
    if not first.index.equals(table.index):
        return ["no differences to the first run: it has other users or targets, or another order of them"]
    if not {*_metrics(table)} & {*_metrics(first)}:
        return [f"no differences to the first run: no metric is in both, it has {', '.join(_metrics(first))}"]
    if result["protocol"] != base["protocol"]:
        return [
            f"the differences are of two protocols: the first run has {base['protocol']}, this {result['protocol']}"
        ]
    return []


def mean_and_error(values: pd.DataFrame) -> dict[str, list[float]]:
    """Metric to its mean over the targets and the half-width of the 95% interval, where users are drawn as a whole.

    With s_u the sum over the n_u targets of user u, m = sum_u s_u / N and the half-width
    1.96 sqrt(sum_u (s_u - n_u m)^2) / N: the normal form of the bootstrap of `compare`.
    """
    users, mean = values.groupby(level=0), values.mean()
    spread = users.sum() - np.outer(users.size(), mean)
    error = 1.96 * np.sqrt((spread**2).sum()) / max(len(values), 1)
    return {name: [float(mean[name]), float(error[name])] for name in map(str, values)}


def _edges(values: pd.Series) -> list[int]:
    """Ends of at most _BINS bins with about as many targets each."""
    ends = np.unique(np.quantile(values, np.linspace(0, 1, _BINS + 1)).astype(int))
    return [int(ends[0]) - 1, *map(int, ends[1:] if len(ends) > 1 else ends)]


def _evaluated(
    path: Path, result: Mapping[str, Any], titles: Mapping[str, str], data_path: str | None, targets: Any
) -> tuple[pd.DataFrame | None, list[dict[str, Any]], list[str]]:
    """Metrics by user, what is recommended to a few users, and what is missing and why."""
    table, notes = None, []
    users: list[dict[str, Any]] = []
    if result.get("per_user_file"):
        try:
            named = Path(result["per_user_file"])
            table = read_per_user(named)
            check_means(table, result, f"'{named}'")
        except UsageError as error:
            notes.append(str(error))
            table = None
    saved, evaluation, files = imported("saved"), imported("training.evaluation"), imported("training.checkpoint_file")
    try:
        settings = {} if data_path is None else {"data_path": data_path}
        checkpoint = _checkpoint(path, result)
        epoch = files.load_checkpoint(checkpoint, needed=["epoch"], lazy=True)["epoch"] + 1
        if epoch != (trained := result.get("best_epoch") or result.get("epochs_run", epoch)):
            raise UsageError(
                f"'{checkpoint}' is of epoch {epoch}, the run's was {trained}: another run has continued it"
            )
        config, model, *_, test = saved.load_data_and_model(checkpoint, config_dict=settings)
        if test is None:
            return table, users, [*notes, "no history has a test target"]
        if table is None or any(trait not in table for trait in TRAITS):
            collected = evaluation.evaluate_targets(model, test, config, show_progress=True).collected
            table = imported("training.result").per_user_table(test, config, collected)
            table = table.set_index(IDS).sort_index(level=0, sort_remaining=False, kind="stable")
        if titles and titles.keys().isdisjoint(map(str, test.dataset.field2id_token[test.dataset.iid_field])):
            notes.append("--titles names none of its items")
        users = _recommended(model, test, config, titles or _titles_of(config), targets)
    except UsageError as error:
        notes.append(str(error))
    return table, users, notes


def _checkpoint(path: Path, result: Mapping[str, Any]) -> Path:
    """The checkpoint of a result, whose path may be relative to the folder of the run or of the file."""
    name = result.get("checkpoint")
    if not name:
        raise UsageError(f"'{path}' names no checkpoint")
    folders = [Path(), path.parent, *Path(result.get("log") or "").parents[2:3]]
    return next((folder / name for folder in folders if (folder / name).is_file()), Path(name))


def _titles_of(config: Any) -> dict[str, str]:
    """Titles by item id: the first column of the data set's .item file with `title` or `name` in its name, if any."""
    file = Path(config["data_path"]) / f"{config['dataset']}.item"
    if not file.is_file():
        return {}
    items = pd.read_csv(file, sep="\t", dtype=str, quoting=3, encoding_errors="replace", keep_default_na=False)
    columns = [name for name in map(str, items) if "title" in name.lower() or "name" in name.lower()]
    return dict(zip(items[f"{config['ITEM_ID_FIELD']}:token"], items[columns[0]], strict=True)) if columns else {}


def _recommended(model: Any, loader: Any, config: Any, titles: Mapping[str, str], targets: Any) -> list[dict[str, Any]]:
    """History, target and the best unseen items: of `targets`, or from the shortest to the longest history."""
    import torch

    evaluation, ranking = imported("training.evaluation"), imported("training.ranking")
    dataset: Any = loader.dataset
    store = dataset.histories
    user_ids, item_ids = dataset.field2id_token[dataset.uid_field], dataset.field2id_token[dataset.iid_field]
    starts, ends = store.offsets[loader.windows.history], loader.windows.end
    if targets:
        ids = zip(user_ids[store.users[loader.windows.history]], item_ids[loader.targets], strict=True)
        number_of = {pair: number for number, pair in enumerate(ids)}
        chosen = np.array([number_of[pair] for pair in targets if pair in number_of], dtype=int)
    else:
        by_length = np.argsort(ends - starts, kind="stable")
        chosen = by_length[np.linspace(0, len(by_length) - 1, min(_USERS, len(by_length))).astype(int)]
    some = copy(loader)
    some.order, some.candidates, some.eval_seen = chosen, None, "mask"

    def text_of(item: int) -> str:
        return titles.get(item_ids[item]) or str(item_ids[item])

    order = evaluation.order_of_equal_scores(config, dataset.item_num)
    n_shown, item_field = min(_K, dataset.item_num - 1), config["ITEM_ID_FIELD"]
    users: list[dict[str, Any]] = []
    for batch in some.batches(range(len(chosen))):
        with torch.no_grad():
            scorer = evaluation.scorer_of(model.eval(), batch, config)
            positives, *seen = (part.to(config["device"]) for part in (batch.interaction[item_field], *batch.seen))
            ranks = ranking.rank_all_items(scorer, positives, order, n_shown, tuple(seen))
        columns = (batch.number.tolist(), ranks.place.tolist(), ranks.top.tolist())
        for number, place, best in zip(*columns, strict=True):
            start, end, target = starts[number], ends[number], int(loader.targets[number])
            user_id = user_ids[store.users[loader.windows.history[number]]]
            user: dict[str, Any] = {"user": str(user_id), "item": str(item_ids[target]), "target": text_of(target)}
            user |= {"length": int(end - start), "rank": place}
            user["history"] = [text_of(item) for item in store.items[max(start, end - _SHOWN) : end]]
            users.append({**user, "best": [[text_of(item), item == target] for item in best]})
        if len(users) == len(chosen):
            break
    return users
