import json
from pathlib import Path

import pytest

from recbole_lisa.benchmark.step import LISA_MODELS, check_equal
from recbole_lisa.cli import main


@pytest.mark.parametrize("name", LISA_MODELS)
def test_the_naive_side_computes_the_same_loss_and_gradients(name: str) -> None:
    check_equal(name, length=13, n_items=40)


def test_the_command_prints_and_writes_a_row_a_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "step.json"
    words = "benchmark step --models LISASoft --batch 4 --length 9 --items 30 --repeats 2 --output"
    assert main([*words.split(), str(file)]) == 0
    printed = capsys.readouterr().out
    assert "torch" in printed.splitlines()[0]
    assert "LISASoft" in printed
    (row,) = json.loads(file.read_text(encoding="utf-8"))["rows"]
    assert row["ratio"] == pytest.approx(row["ours"]["median"] / row["naive"]["median"])
    assert row["naive_mb"] != row["ours_mb"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("benchmark stop", "unknown benchmark 'stop': known are step. Did you mean 'step'?"),
        ("benchmark", "which benchmark? Known are step"),
        ("benchmark step --models Transformer", "no naive twin of 'Transformer'"),
        ("benchmark step --batch few", "invalid int value: 'few'"),
    ],
)
def test_mistakes_end_with_one_line_and_status_2(words: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words.split()) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert line.startswith("error: ")
    assert message in line
