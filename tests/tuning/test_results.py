"""What a search leaves behind."""

import csv
import json
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from recbole_lisa.tuning.plots import axis_of, draw_search
from recbole_lisa.tuning.record import FAILED, Record
from recbole_lisa.tuning.results import check_best, command, describe, results_csv, summary, write_results
from tests.tuning.test_record import filled

REQUEST = {
    "model": "LISASoft", "dataset": "ml-100k", "protocol": "paper", "config_files": ["/a b.yaml"],
    "settings": {"epochs": 5, "topk": "[5, 10]"},
}  # fmt: skip
TEST = {"hit@10": 0.6, "ndcg@10": 0.35}


@pytest.fixture
def record(tmp_path: Path) -> Record:
    record = filled(tmp_path / "search")
    record.set_status(3, FAILED, "out of memory")
    record.request = REQUEST
    return record


def document(record: Record, test: Any = TEST) -> dict[str, Any]:
    return describe(record, test, epochs=5, seed=7)


def test_the_table_has_a_row_for_every_trial_and_test_metrics_for_the_best_alone(record: Record) -> None:
    rows = list(csv.DictReader(results_csv(document(record)).splitlines()))
    shown = [" ".join(row[key] for key in ("trial", "status", "n_codewords", "seed")) for row in rows]
    assert shown == ["0 finished 16 7", "1 stopped 8 7", "2 running 32 7", "3 failed 64 7"]
    assert [row["valid ndcg@10"] for row in rows] == ["0.3", "0.3", "0.4", ""]
    assert [row["test ndcg@10"] for row in rows] == ["", "", "0.35", ""]
    assert [(row["epochs"], row["seconds"]) for row in rows] == [("2", "4.0"), ("1", "2.0"), ("1", "2.0"), ("0", "0")]


def test_the_document_names_the_best_the_default_and_the_way_back(record: Record) -> None:
    found = document(record)
    assert (found["best"]["trial"], found["best"]["test"], found["best"]["valid"]["ndcg@10"]) == (2, TEST, 0.4)
    assert (found["default"]["settings"], found["default"]["score"]) == ({"n_codewords": 16}, 0.3)
    assert found["seconds"] == 8.0
    assert found["trials"][3]["problem"] == "out of memory"
    assert shlex.split(found["best"]["command"]) == [
        *("recbole-lisa", "-m", "LISASoft", "-d", "ml-100k", "--protocol=paper", "--config_files", "/a b.yaml"),
        *("--epochs=5", "--topk=[5, 10]", "--n_codewords=32"),
    ]


@pytest.mark.parametrize(
    ("value", "word"),
    [(0.5, "0.5"), ("learnable", "learnable"), (None, "~"), ([0.9, 0.98], "[0.9, 0.98]"), (True, "true")],
)
def test_a_value_is_written_as_yaml(record: Record, value: Any, word: str) -> None:
    record.trials[2].settings = {"key": value}
    last = shlex.split(command(record, record.trials[2], 5))[-1]
    assert last == f"--key={word}"
    assert yaml.safe_load(last.partition("=")[2]) == value


def test_all_files_are_written(record: Record, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    found = document(record)
    files = write_results(found, tmp_path, "NDCG@10")
    assert [file.name for file in files] == ["results.csv", "results.json", "best.yaml", "results.png"]
    assert json.loads(files[1].read_text()) == json.loads(json.dumps(found))
    assert yaml.safe_load(files[2].read_text()) == {"n_codewords": 32}
    assert files[3].read_bytes().startswith(b"\x89PNG")


def test_a_plot_takes_any_kind_of_setting(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    kinds = [
        ("finished", {"a": 1e-4, "b": "x", "c": [1], "d": None}),
        ("stopped", {"a": 1e-2, "b": 2, "c": [2], "d": 3}),
    ]
    trials = [
        {"trial": number, "status": status, "settings": settings, "score": 0.1 * number}
        for number, (status, settings) in enumerate(kinds)
    ]
    draw_search(trials, "NDCG@10", tmp_path / "plot.png")
    assert (tmp_path / "plot.png").stat().st_size > 10_000


def test_numbers_have_a_number_axis_and_other_values_names() -> None:
    assert axis_of([3, 0.5]) == ([3.0, 0.5], [])
    assert axis_of([0.1, "learnable", 0.1]) == ([0.0, 1.0, 0.0], ["0.1", "learnable"])
    assert axis_of([True, False]) == ([1.0, 0.0], ["false", "true"])
    assert axis_of([[2], None]) == ([0.0, 1.0], ["[2]", "null"])


def test_the_summary_goes_from_best_to_worst_and_names_the_default(record: Record) -> None:
    lines = summary(record, document(record), "NDCG@10")
    assert [line.split()[0] for line in lines[1:5]] == ["2", "0", "1", "3"]
    assert "n_codewords=16 (default)" in lines[2]
    assert lines[5].strip() == "out of memory"
    assert lines[6] == "best: trial 2 with NDCG@10 0.4000 on the validation items, the default 0.3000"
    assert lines[7] == "its test metrics: hit@10 0.6000, ndcg@10 0.3500"


def test_a_checkpoint_of_another_machine_leaves_a_note(record: Record) -> None:
    test, note = check_best(record.trials[2], {})
    assert test is None
    assert note == "'none.pth' cannot be seen from here: let --storage be a folder of all nodes"
    found = describe(record, test, epochs=5, seed=7, note=note)
    assert f"no test metrics: {note}" in summary(record, found, "NDCG@10")
    assert {row["test ndcg@10"] for row in csv.DictReader(results_csv(found).splitlines())} == {""}
