"""The files of a finished search."""

import csv
import json
import shlex
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from pytest import CaptureFixture, MonkeyPatch

from recbole_lisa.config.config import LISAConfig
from recbole_lisa.errors import UsageError
from recbole_lisa.tuning import results
from recbole_lisa.tuning.results import best_settings, check_best, conclude, draw_search, results_table

FIXED = {
    "model": "LISASoft", "dataset": "ml-100k", "protocol": None, "config_files": [], "epochs": "5",
    "hidden_size": "16", "topk": "[5, 10]",
}  # fmt: skip
TEST = {"hit@10": 0.6, "ndcg@10": 0.35}


def row(number: int, status: str, score: float | None, n_codewords: int, **more: Any) -> dict[str, Any]:
    valid = None if score is None else {"hit@10": 0.5, "ndcg@10": score}
    best_epoch = None if score is None else 1
    return {
        "trial": number, "status": status, "settings": {"n_codewords": n_codewords}, "seed": 7, "epochs": 2,
        "best_epoch": best_epoch, "valid": valid, "score": score, "seconds": 2.0, "node": "here",
        "best_file": "none.pth", "problem": None, **more,
    }  # fmt: skip


ROWS = [
    row(0, "finished", 0.3, 16),
    row(1, "stopped", 0.3, 8),
    row(2, "finished", 0.4, 32),
    row(3, "failed", None, 64, problem="out of memory"),
]


def document(test: Any = TEST, note: str | None = None) -> dict[str, Any]:
    best = {**ROWS[2], "test": test, "test_note": note, "command": "recbole-lisa ..."}
    return {"best": best, "default": ROWS[0], "trials": ROWS}


def test_table_has_a_row_per_trial_and_test_metrics_for_the_best_only() -> None:
    rows = list(csv.DictReader(results_table(document()).to_csv(index=False).splitlines()))
    shown = [" ".join(row[key] for key in ("trial", "status", "n_codewords", "seed", "best_epoch")) for row in rows]
    assert shown == ["0 finished 16 7 1", "1 stopped 8 7 1", "2 finished 32 7 1", "3 failed 64 7 "]
    assert [row["valid ndcg@10"] for row in rows] == ["0.3", "0.3", "0.4", ""]
    assert [row["test ndcg@10"] for row in rows] == ["", "", "0.35", ""]


def test_conclude_writes_all_files(tmp_path: Path, monkeypatch: MonkeyPatch, capsys: CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    (tmp_path / "search.json").write_text('{"seed": 7}', encoding="utf-8")
    monkeypatch.setattr(results, "check_best", lambda path: (TEST, None))
    assert conclude(ROWS, FIXED, tmp_path, "NDCG@10") == 1  # a trial failed
    names = ["results.csv", "results.json", "best.yaml", "results.png"]
    assert capsys.readouterr().out.splitlines()[-4:] == [str(tmp_path / name) for name in names]
    kept = json.loads((tmp_path / "results.json").read_text())
    assert (kept["best"]["trial"], kept["best"]["test"], kept["best"]["valid"]["ndcg@10"]) == (2, TEST, 0.4)
    assert (kept["default"], kept["seconds"], kept["search"]) == (ROWS[0], 8.0, {"seed": 7})
    assert (tmp_path / "results.png").read_bytes().startswith(b"\x89PNG")
    command = ["recbole-lisa", "-m", "LISASoft", "-d", "ml-100k", "--config_files", str(tmp_path / "best.yaml")]
    assert shlex.split(kept["best"]["command"]) == command
    assert conclude(ROWS[:3], FIXED, tmp_path, "NDCG@10") == 0
    with pytest.raises(UsageError, match="no trial reached a validation: out of memory"):
        conclude(ROWS[3:], FIXED, tmp_path, "NDCG@10")


@pytest.mark.parametrize("protocol", ["full_ranking", "paper"])
def test_best_yaml_alone_gives_the_configuration_of_the_trial(tmp_path: Path, protocol: str) -> None:
    mine = tmp_path / "mine.yaml"
    mine.write_text("n_layers: 2\neval_args: {split: {LS: valid_and_test}}\n", encoding="utf-8")
    fixed = {**FIXED, "protocol": protocol, "config_files": [str(mine)], "loss_type": "CE"}
    chosen = {"n_codewords": 32, "learning_rate": 0.00123, "adam_betas": "[0.9, 0.98]"}
    best = tmp_path / "best.yaml"
    best.write_text(yaml.safe_dump(best_settings(fixed, chosen)), encoding="utf-8")
    alone = LISAConfig("LISASoft", "ml-100k", config_files=[best]).plain()
    trial = results.build_config({**fixed, **chosen}).plain()
    assert {key for key in trial if trial[key] != alone[key]} == set()
    assert (alone["hidden_size"], alone["n_codewords"], alone["n_layers"], alone["epochs"]) == (16, 32, 2, 5)


def test_row_is_read_from_the_result_of_ray(tmp_path: Path) -> None:
    (tmp_path / "params.json").write_text('{"n_codewords": 32, "model": "LISASoft", "seed": 3}', encoding="utf-8")
    error = RuntimeError("first\nout of memory")
    ending = SimpleNamespace(path=str(tmp_path), metrics={}, checkpoint=None, error=error)
    failed = results.trial_row(ending, 4, ["n_codewords"], 7)
    assert (failed["trial"], failed["status"], failed["settings"]) == (4, "failed", {"n_codewords": 32})
    assert (failed["problem"], failed["score"], failed["best_file"], failed["seed"]) == ("out of memory", None, None, 3)
    ending.error, ending.metrics = None, {"finished": True, "epoch": 5, "score": 0.4, "time_total_s": 2.5}
    assert results.trial_row(ending, 4, ["n_codewords"], 7)["status"] == "finished"
    ending.metrics["finished"] = False
    assert results.trial_row(ending, 4, ["n_codewords"], 7)["status"] == "stopped"


def test_plot_takes_any_kind_of_setting(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    first = row(0, "finished", 0.3, 8, settings={"a": 1e-4, "b": "x", "c": "[1]", "d": None, "e": True})
    second = {**ROWS[1], "settings": {**first["settings"], "a": 1, "b": 2}}
    draw_search([first, second], "NDCG@10", tmp_path / "plot.png")
    assert (tmp_path / "plot.png").stat().st_size > 10_000


def test_summary_goes_from_best_to_worst_and_names_a_missing_checkpoint() -> None:
    lines = results.summary(document(), "NDCG@10").splitlines()
    assert [line.split()[0] for line in lines[1:5]] == ["2", "0", "1", "3"]
    assert lines[5] == "trial 3 failed: out of memory"
    assert lines[6] == "best: trial 2 with NDCG@10 0.4000 on the validation items, the default (trial 0) 0.3000"
    assert lines[7] == "its test metrics: hit@10 0.6000, ndcg@10 0.3500"
    test, note = check_best("none.pth")
    assert test is None
    assert note == "checkpoint 'none.pth' is not on this machine: let --storage be a folder that all nodes share"
    assert f"no test metrics: {note}" in results.summary(document(test, note), "NDCG@10")
    assert results_table(document(test, note))["test ndcg@10"].isna().all()
