"""A checkpoint scored again by `recbole-lisa evaluate`."""

from pathlib import Path
from typing import Any

import pytest
from pytest import CaptureFixture, MonkeyPatch

from recbole_lisa.cli.main import main
from recbole_lisa.quick_start import run
from recbole_lisa.saved import load_data_and_model
from recbole_lisa.training.evaluation import evaluate
from tests.tiny import tiny_settings, train_tiny


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("evaluated")


@pytest.fixture(scope="module")
def result(folder: Path) -> dict[str, object]:
    return train_tiny(folder, epochs=2, hidden_size=8, n_codewords=4, valid_metric="Hit@5")


def printed(lines: str) -> dict[str, float]:
    return {name: float(value) for name, value in (line.split() for line in lines.splitlines()[1:])}


@pytest.mark.parametrize("phase", ["valid", "test"])
def test_both_protocols_of_a_checkpoint_are_printed(result: Any, phase: str, capsys: CaptureFixture[str]) -> None:
    assert main(["evaluate", f"--checkpoint={result['checkpoint']}", "--eval_seen=both", f"--phase={phase}"]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"LISABase on tiny, protocol full_ranking, eval_seen both, 24 {phase} targets\n")
    metrics = printed(out)
    assert {name: metrics[name] for name in result[phase]} == result[phase]
    assert metrics["ndcg@10_masked"] > metrics["ndcg@10"]


def test_one_protocol_keeps_the_metric_of_the_best_epoch(result: dict[str, str]) -> None:
    config, model, *_, test = load_data_and_model(result["checkpoint"], config_dict={"eval_seen": "mask"})
    assert config["valid_metric"] == "Hit@5_masked"
    assert set(evaluate(model, test, config)) == {f"{name}_masked" for name in result["test"]}


def test_other_metrics_are_computed(result: dict[str, str], tmp_path: Path, capsys: CaptureFixture[str]) -> None:
    arguments = ["evaluate", f"--checkpoint={result['checkpoint']}", "--metrics=[MAP,ItemCoverage]", "--topk=[7,30]"]
    file = f"--per_user_file={tmp_path / 'users.json'}"
    assert [main([*arguments, file]), main([*arguments, file]), main([*arguments, file, "--overwrite"])] == [0, 2, 0]
    out = capsys.readouterr().out
    assert list(printed(out[: out.index("LISABase", 1)])) == ["map@7", "map@30", "itemcoverage@7", "itemcoverage@30"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--eval_seen=all"], "unknown eval_seen 'all'"),
        (["--eval_args={mode: uni9}"], "evaluate does not take '--eval_args': known are eval_seen, metrics"),
        (["--phase=train"], "argument --phase: invalid choice: 'train'"),
        (["--topk=[5, 50]"], "topk asks for the 50 best of only 30 items"),
    ],
)
def test_mistakes_are_one_line(result: Any, arguments: list[str], message: str, capsys: CaptureFixture[str]) -> None:
    assert main(["evaluate", f"--checkpoint={result['checkpoint']}", *arguments]) == 2
    assert capsys.readouterr().err.startswith(f"error: {message}")


def test_a_phase_without_items_is_named(folder: Path, monkeypatch: MonkeyPatch, capsys: CaptureFixture[str]) -> None:
    monkeypatch.chdir(folder)
    settings = tiny_settings(folder, epochs=1, hidden_size=8, n_codewords=4, eval_args={"mode": "uni9"})
    result = run("LISABase", "tiny", protocol="paper", config_dict={**settings, "show_progress": False})
    assert main(["evaluate", f"--checkpoint={result['checkpoint']}", "--phase=valid"]) == 2
    assert "error: protocol 'paper' has no valid items: choose the other --phase" in capsys.readouterr().err
