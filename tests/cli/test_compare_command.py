"""Metrics per user: their means are the reported metrics, and two files are compared user by user."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from pytest import CaptureFixture, MonkeyPatch

from recbole_lisa.cli.compare_command import TRAITS, compare, read_per_user
from recbole_lisa.cli.main import main
from recbole_lisa.errors import UsageError
from recbole_lisa.quick_start import run
from recbole_lisa.training.evaluation import evaluate_targets
from recbole_lisa.training.result import write_per_user
from tests.tiny import BlockModel, ConstantModel, TinyModel, histories_of, tiny_config, tiny_loaders, tiny_settings

METRICS = ["Hit", "MRR", "NDCG", "Recall", "Precision", "MAP"]


def table(values: dict[str, float], name: str = "ndcg@10") -> pd.DataFrame:
    """Metrics of one target for each user."""
    ids = pd.MultiIndex.from_tuples([(user, f"item of {user}") for user in values], names=["user_id", "item_id"])
    return pd.DataFrame({name: values.values()}, index=ids, dtype=float).sort_index()


def test_csv_and_json_hold_the_same_numbers(tmp_path: Path) -> None:
    values = 1 / np.log2(np.arange(2, 202))
    users = pd.DataFrame({"user_id": np.arange(200).astype(str), "item_id": "i", "ndcg@10": values})
    users.to_csv(tmp_path / "a.csv", index=False)
    (tmp_path / "a.json").write_text(json.dumps(users.to_dict("list")))
    tables = [read_per_user(tmp_path / f"a.{ending}") for ending in ("csv", "json")]
    pd.testing.assert_frame_equal(*tables, check_exact=True)


@pytest.mark.parametrize("ending", ["csv", "json"])
@pytest.mark.parametrize(
    ("model", "settings"),
    [
        (BlockModel, {"eval_seen": "both", "metrics": [*METRICS, "GAUC", "ItemCoverage"]}),
        (TinyModel, {"eval_args": {"split": {"RS": [0.5, 0.2, 0.3]}}, "metrics": METRICS}),
        (TinyModel, {"eval_args": {"mode": "uni12"}, "metrics": METRICS}),
        (ConstantModel, {"eval_seen": "mask", "metrics": METRICS}),
    ],
)
def test_means_of_a_file_are_metrics(tmp_path: Path, model: type[Any], settings: dict[str, Any], ending: str) -> None:
    config = tiny_config(tmp_path, model=model, metric_decimal_place=14, topk=[1, 4, 9], **settings)
    train, _, test = tiny_loaders(config)
    metrics, _, collected = evaluate_targets(model(config, train.dataset), test, config)
    path = tmp_path / f"users.{ending}"
    write_per_user(test, config, collected, path)
    users = read_per_user(path)
    whole = {name: value for name, value in metrics.items() if not name.startswith(("gauc", "itemcoverage"))}
    for name, value in whole.items():
        assert users[name].mean() == pytest.approx(value, abs=1e-9), name
    suffixes = [name.removeprefix("rank") for name in users if str(name).startswith("rank")]
    assert set(users) == {*whole, *TRAITS, *(f"rank{suffix}" for suffix in suffixes)}
    for suffix in suffixes:
        rank = users[f"rank{suffix}"]
        np.testing.assert_allclose(users[f"mrr@9{suffix}"], (rank <= 9) / rank)
    # Every target once, in the order of time.
    histories = histories_of(tmp_path)
    for user, group in users.groupby(level=0):
        n_before = len(histories[user]) - len(group)
        assert list(group.index.get_level_values(1)) == histories[user][n_before:]
        assert list(group["history_length"]) == list(range(n_before, len(histories[user])))
    counts = dict(zip(train.dataset.field2id_token["item_id"], train.dataset.item_counts, strict=True))
    assert list(users["popularity"]) == [counts[item] for item in users.index.get_level_values(1)]
    assert len(users) == len(test.targets) and users.index.unique(0).size == 24


def test_two_processes_write_every_user_once(isolated_run_dir: Path) -> None:
    settings = {"epochs": 1, "hidden_size": 8, "n_codewords": 4, "show_progress": False, "eval_batch_size": 5}
    settings = tiny_settings(isolated_run_dir, **settings, metric_decimal_place=12)
    two, one = (
        run("LISABase", "tiny", config_dict={**settings, "nproc": n, "per_user_file": f"{n}.csv", "epochs": 1})
        for n in (2, 1)
    )
    for result in (two, one):
        users = read_per_user(Path(result["per_user_file"]))
        assert len(users) == 24
        assert users["ndcg@10"].mean() == pytest.approx(result["test"]["ndcg@10"], abs=1e-9)


def test_result_files_name_the_files_that_are_compared(isolated_run_dir: Path, capsys: CaptureFixture[str]) -> None:
    settings = tiny_settings(isolated_run_dir, hidden_size=8, n_codewords=4, show_progress=False)
    for name, epochs in (("a", 1), ("b", 4)):
        files = {"result_file": f"{name}.json", "per_user_file": f"{name}.csv"}
        run("LISABase", "tiny", config_dict={**settings, "epochs": epochs, **files})
    results = [json.loads(Path(f"{name}.json").read_text()) for name in "ab"]
    assert [result["per_user_file"] for result in results] == [str(isolated_run_dir / f"{name}.csv") for name in "ab"]
    checkpoint = f"--checkpoint={results[1]['checkpoint']}"
    assert main(["evaluate", checkpoint, "--eval_seen=both", "--per_user_file=again.json"]) == 0
    assert main(["evaluate", checkpoint, "--per_user_file=again.json"]) == 2
    assert "'again.json' exists: add --overwrite" in capsys.readouterr().err
    pd.testing.assert_frame_equal(read_per_user(Path("again.json"))[["hit@5"]], read_per_user(Path("b.csv"))[["hit@5"]])
    tables = []
    for names in (("a.json", "b.json"), ("a.csv", "again.json")):
        assert main(["compare", *names]) == 0
        tables.append(capsys.readouterr().out)
    assert tables[0] == tables[1]
    rows = {line.split()[0]: [float(x) for x in line.split()[1:]] for line in tables[0].splitlines()[1:]}
    for name, (a, b, difference, low, high) in rows.items():
        if name != "rank":
            assert (a, b) == tuple(result["test"][name] for result in results)
        assert difference == pytest.approx(b - a, abs=1.1e-4) and low <= difference <= high


def test_a_file_that_another_run_has_written_is_refused(isolated_run_dir: Path, capsys: CaptureFixture[str]) -> None:
    settings = tiny_settings(isolated_run_dir, hidden_size=8, n_codewords=4, show_progress=False, per_user_file="u.csv")
    for name, epochs in (("a", 1), ("b", 4)):
        files = {"result_file": f"{name}.json", "overwrite": True, "epochs": epochs}
        run("LISABase", "tiny", config_dict={**settings, **files})
    assert main(["compare", "b.json", "u.csv"]) == 0
    capsys.readouterr()
    assert main(["compare", "a.json", "b.json"]) == 2
    later = "u.csv', which 'a.json' names, has [a-z]+@[0-9]+ .*, the run had .*: another run has written it since"
    assert re.search(later, capsys.readouterr().err)
    assert main(["report", "a.json", "--output=a.html"]) == 0
    assert re.search(r"u\.csv' has [a-z]+@\d+ ", capsys.readouterr().err)
    result, other = (json.loads(Path(name).read_text()) for name in ("a.json", "b.json"))
    Path("c.json").write_text(json.dumps({**result, "checkpoint": other["checkpoint"]}))
    assert main(["report", "c.json", "--output=c.html"]) == 0
    of = f"is of epoch {other['best_epoch']}, the run's was 1"
    assert re.search(rf"\.pth' {of}: another run has continued it", capsys.readouterr().err)
    page = Path("c.html").read_text(encoding="utf-8").rpartition("const data = ")[2]
    assert "metrics" not in json.loads(page.partition(";\nconst runs")[0])["runs"][0]


def test_the_interval_is_that_of_the_mean_difference_and_pairs_the_users() -> None:
    rng = np.random.default_rng(1)
    quality, gain = rng.normal(size=400), rng.normal(0.3, 0.1, size=400)
    names = [f"u{n}" for n in range(400)]
    a = table(dict(zip(names, quality, strict=True)))
    b = table(dict(zip(reversed(names), (quality + gain)[::-1], strict=True)))
    row = compare(a, b).loc["ndcg@10"]
    assert row["B - A"] == pytest.approx(gain.mean()) and row["A"] == pytest.approx(quality.mean())
    deviation = gain.std() / 20  # unpaired it would be ten times as wide
    assert row["low"] == pytest.approx(gain.mean() - 1.96 * deviation, abs=0.1 * deviation)
    assert row["high"] == pytest.approx(gain.mean() + 1.96 * deviation, abs=0.1 * deviation)
    pd.testing.assert_frame_equal(compare(a, b), compare(a, b))
    assert not compare(a, b, seed=1).equals(compare(a, b))


def test_a_user_with_several_targets_is_drawn_as_a_whole() -> None:
    rows = pd.DataFrame({"user_id": ["u", "u", "v"], "item_id": ["i", "j", "i"], "hit@1": [0.0, 0.0, 0.0]})
    a = rows.set_index(["user_id", "item_id"])
    row = compare(a, a + np.array([[1.0], [1.0], [0.0]])).loc["hit@1"]
    assert row["B - A"] == pytest.approx(2 / 3)
    assert (row["low"], row["high"]) == (0, 1)  # u twice, v twice


def test_other_files_are_refused(tmp_path: Path, monkeypatch: MonkeyPatch, capsys: CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    a = table({"u": 1, "v": 0})
    with pytest.raises(UsageError, match="2 are in one alone, such as item 'item of [vw]' of user '[vw]'"):
        compare(a, table({"u": 1, "w": 0}))
    with pytest.raises(UsageError, match=r"no metric is in both files: A has ndcg@10, B has ndcg@10_masked"):
        compare(a, table({"u": 1, "v": 0}, "ndcg@10_masked"))
    with pytest.raises(UsageError, match="orders of targets: the first difference is at item 'item of u' of user 'u'"):
        compare(a, a.iloc[[0, 0, 1]])
    Path("no.json").write_text('{"config": {}, "per_user_file": null}')
    Path("empty.csv").write_text("user_id,item_id,hit@1\n")
    Path("other.csv").write_text("a,b\n1,2\n")
    Path("list.json").write_text("[1]")
    Path("text.csv").write_text("user_id,item_id,hit@1\nu,i,1\nu,j,nan\n")
    for name, value in (("hit@1", "-7.5"), ("ndcg@5_masked", "1.5"), ("rank_masked", "0"), ("popularity", "x")):
        Path(f"{name}.csv").write_text(f"user_id,item_id,{name},mine@3\nu,i,1,-5\nu,j,{value},99\n")
    Path("twice.csv").write_text("user_id,item_id,hit@1,hit@1\nu,i,1,0\n")
    Path("null.json").write_text('[{"user_id": "u", "item_id": "i", "hit@1": null}]')
    Path("itself.json").write_text('{"config": {}, "per_user_file": "itself.json"}')
    for file, message in (
        ("itself.json", "'itself.json' is neither a per_user_file nor a result_file of a run"),
        ("no.json", "'no.json' names no per_user_file: run `evaluate` with --per_user_file=FILE"),
        ("missing.csv", "'missing.csv' cannot be read: No such file or directory"),
        ("empty.csv", "'empty.csv' has no targets: name the per_user_file of a finished run"),
        ("other.csv", "'other.csv' is neither a per_user_file nor a result_file of a run"),
        ("text.csv", "'text.csv', line 3, column hit@1: 'nan' is no finite number"),
        ("hit@1.csv", "'hit@1.csv', line 3, column hit@1: '-7.5' is not from 0 to 1"),
        ("ndcg@5_masked.csv", "'ndcg@5_masked.csv', line 3, column ndcg@5_masked: '1.5' is not from 0 to 1"),
        ("rank_masked.csv", "'rank_masked.csv', line 3, column rank_masked: '0' is not from 1 to inf"),
        ("popularity.csv", "'popularity.csv', line 3, column popularity: 'x' is no finite number"),
        ("twice.csv", "twice.csv: the first line names the column hit@1 twice: rename one of them"),
        ("null.json", "'null.json', entry 1, column hit@1: 'None' is no finite number"),
        ("list.json", "'list.json' is neither a per_user_file nor a result_file of a run"),
    ):
        assert (main(["compare", file, file]), capsys.readouterr().err) == (2, f"error: {message}\n")
    with pytest.raises(UsageError, match=r"per_user_file is 'users\.txt', it must end in \.csv or \.json"):
        tiny_config(tmp_path, per_user_file="users.txt")


def test_metrics_of_one_file_alone_are_named(isolated_run_dir: Path, capsys: CaptureFixture[str]) -> None:
    Path("a.csv").write_text("user_id,item_id,popularity,hit@1,ndcg@9,map@3\nu,i,3,1,1,1\n")
    Path("b.csv").write_text("user_id,item_id,hit@1,ndcg@10\nu,i,0,1\n")
    assert main(["compare", "a.csv", "b.csv"]) == 0
    shown = capsys.readouterr()
    assert [line.split()[0] for line in shown.out.splitlines()[1:]] == ["hit@1"]
    assert shown.err == "not compared, only in A: ndcg@9, map@3\nnot compared, only in B: ndcg@10\n"


def test_odd_raw_ids_survive_the_file(tmp_path: Path) -> None:
    for path in (tmp_path / "a.csv", tmp_path / "a.json"):
        odd = ["NA", "007", 'a,"b"', "é"]
        frame = pd.DataFrame({"user_id": odd, "item_id": odd, "hit@1": [0.1, 0.2, 1 / 3, 1.0]})
        if path.suffix == ".csv":
            frame.to_csv(path, index=False)
        else:
            path.write_text(json.dumps(frame.to_dict("list")))
        users = read_per_user(path)
        assert sorted(users.index) == sorted((user, user) for user in odd)
        assert users.loc[('a,"b"', 'a,"b"'), "hit@1"] == 1 / 3
