"""The other tables and figures: what their pages show, and that each command reaches its page."""

import argparse
import csv
import shlex
from pathlib import Path
from typing import Any

import pytest

import benchmarks
from benchmarks import main
from benchmarks.paper.compression import compression_page
from benchmarks.paper.options import Table
from benchmarks.paper.sensitivity import points, sensitivity_page, sensitivity_rows
from tests.benchmarks.paper.test_ranking import made_up, table
from tests.tiny import write_tiny_dataset

pytest.importorskip("matplotlib")


def test_the_study_of_w_has_a_row_a_point_and_a_line_for_every_run(tmp_path: Path) -> None:
    rows = sensitivity_rows(["LISASoft", "LISAMini"], [16, 96], 8)
    assert rows["LISA-Mini-96"].options() == ["--model=LISAMini", "--n_codebooks=8", "--n_codewords=96"]
    found = {name: [made_up(1, 0.6), made_up(2, 0.7)] if "Soft" in name else [] for name in rows}
    found["LISA-Mini-16"] = [made_up(1, 0.5)]
    page, figures, plot = sensitivity_page("ml-100k", rows, found, ["--epochs=20"], tmp_path)
    text = page.read_text()
    lines = [line for line in text.splitlines() if line.startswith("| LISA")]
    assert (
        lines[0] == "| LISA-Soft | 16 | 0.4500 [0.1000] | 0.3500 [0.1000] | 0.6500 [0.1000] | 0.4000 [0.1000] | 1, 2 |"
    )
    assert lines[3] == "| LISA-Mini | 96 | not run | not run | not run | not run | - |"
    assert "python -m benchmarks paper sensitivity --dataset=ml-100k --seeds 1 2 --epochs=20" in text
    read = list(csv.DictReader(figures.open()))
    assert [(row["model"], row["n_codewords"], row["seed"]) for row in read][-1] == ("LISAMini", "16", "1")
    assert points(rows, found, "LISAMini", "hit@10") == [(16, 0.5, 0.5, 0.5)]
    assert plot.read_bytes().startswith(b"\x89PNG")
    page.write_text(text + "By hand.\n")
    sensitivity_page("ml-100k", rows, found, [], tmp_path)
    assert page.read_text().endswith("By hand.\n")


def test_the_words_of_a_page_are_for_the_shell() -> None:
    settings = {"user_inter_num_interval": "[300,inf)", "data_path": "my data", "epochs": "2"}
    words = ["--user_inter_num_interval=[300,inf)", "--data_path=DATA", "--epochs=2"]
    assert shlex.split(" ".join(Table(argparse.Namespace(), settings).public())) == words


def test_a_compression_ratio_stands_beside_the_papers(tmp_path: Path) -> None:
    sizes = {"float32_bytes": 4000.0, "formula_bytes": 1250.0, "compression_ratio": 3.2, "bytes_on_disk": 1600}
    manifest = {"items": {"n_items": 1000}, "item_table": sizes}
    page = compression_page("ml-1m", {"LISA-Base": manifest}, ["--hidden_size=16"], tmp_path)
    assert "python -m benchmarks paper compression --dataset=ml-1m --hidden_size=16\n" in page.read_text()
    assert table(page.read_text())["LISA-Base"] == ["1,000", "4,000", "1,250", "3.20", "3.19", "1,600", "2.50"]


@pytest.mark.parametrize(("name", "called"), [("speed", "attention"), ("memory", "memory"), ("online", "online")])
def test_a_benchmark_is_called_at_the_papers_sizes(monkeypatch: pytest.MonkeyPatch, name: str, called: str) -> None:
    asked: list[list[str]] = []

    def record(argv: list[str]) -> int:
        asked.append(argv)
        return 0

    monkeypatch.setattr(benchmarks, "run_benchmark", record)
    assert main(["paper", name, "--device=cuda"]) == 0
    assert (asked[0][0], asked[0][-1]) == (called, "--device=cuda")
    parser = benchmarks.UsageParser("benchmark", "")
    benchmarks.VERBS[called].add_options(parser)
    assert parser.parse_args(asked[0][1:]).output == f"results/{name}"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["sensitivty"], "Did you mean 'sensitivity'"),
        (["sensitivity", "-d", "ml-100k", "--n_codewords=8"], "use --codewords"),
        (["sensitivity", "-d", "ml-100k", "--codewords", "0"], "n_codewords (command line) is 0"),
        (["migration", "-d", "ml-100k", "--epoch=3"], "Did you mean 'epochs'"),
        (["compression", "-d", "ml-100k", "--gpus_per_run=1"], "add --address=local"),
        (["ranking", "-d", "ml-100k", "--address=local", "--parallel=2"], "--parallel=2 is without Ray"),
    ],
)
def test_mistakes_stop_before_anything_runs(
    isolated_run_dir: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    assert main(["paper", *words]) == 2
    assert message in capsys.readouterr().err
    assert list(isolated_run_dir.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "page"),
    [
        ("ranking", "ml-100k.md"),
        ("sensitivity", "sensitivity-ml-100k.md"),
        ("migration", "migration-ml-100k.md"),
        ("compression", "compression-ml-100k.md"),
    ],
)
def test_a_page_of_somebody_else_stays(
    isolated_run_dir: Path, capsys: pytest.CaptureFixture[str], name: str, page: str
) -> None:
    file = isolated_run_dir / "results" / page
    file.parent.mkdir()
    file.write_text("# My notes\n")
    assert main(["paper", name, "-d", "ml-100k"]) == 2
    assert f"'results/{page}' exists: add --overwrite" in capsys.readouterr().err
    assert file.read_text() == "# My notes\n"
    assert list(isolated_run_dir.iterdir()) == [file.parent]


@pytest.mark.slow
def test_migration_and_compression_run_to_their_pages(isolated_run_dir: Path) -> None:
    write_tiny_dataset(Path("data"))
    small: list[Any] = ["--hidden_size=8", "--inner_size=8", "--n_codewords=4", "--eval_args={mode: uni12}"]
    words = ["-d", "tiny", "--data_path=data", *small]
    assert main(["paper", "migration", "--seeds", "1", "--epochs=2", *words]) == 0
    rows = table(Path("results/migration-tiny.md").read_text())
    assert {row: cells[-1] for row, cells in rows.items() if row != "row"} == dict.fromkeys(
        ("LISA-Base", "Transformer, quantised", "migrated, trained further", "migrated, no further training"), "1"
    )
    assert main(["paper", "compression", *words]) == 0
    rows = table(Path("results/compression-tiny.md").read_text())
    assert (rows["LISA-Base"][0], rows["LISA-Base"][4]) == ("30", "not in the paper")
