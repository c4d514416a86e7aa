"""What the pages of the tables show."""

import csv
import json
import shlex
from pathlib import Path
from typing import Any

import pytest
from pytest import CaptureFixture

from benchmarks import main
from benchmarks.paper import compression, modern, ranking, sensitivity
from benchmarks.paper.runs import METRICS, ROWS, Row, paper_figures
from benchmarks.paper.study import MARK, Study
from benchmarks.rows import ROWS as LAYER_ROWS
from recbole_lisa.config.registry import MODELS
from recbole_lisa.errors import UsageError

pytest.importorskip("matplotlib")


def made_up(seed: int, hit: float) -> dict[str, Any]:
    """A result with only what the pages read."""
    metrics = dict(zip(METRICS, (hit - 0.2, hit - 0.3, hit, hit - 0.25), strict=True))
    config: dict[str, Any] = {"MAX_ITEM_LIST_LENGTH": 300, "loss_type": "BCE", "train_batch_size": 128, "epochs": 200}
    config |= {"train_neg_sample_args": {"sample_num": 1, "distribution": "uniform"}}
    config |= {"learning_rate": 0.001, "adam_betas": [0.9, 0.98]}
    curve = [{"epoch": 10, **metrics}, {"epoch": 20, **metrics}]
    run = {"seed": seed, "test": metrics, "curve": curve, "epochs_run": 20, "config": config}
    return {**run, "device": "cpu", "versions": {"torch": "2.13.0"}}


def table(text: str) -> dict[str, list[str]]:
    """Row name -> its cells."""
    lines = (line.strip("| \n").split(" | ") for line in text.splitlines() if line[:2] == "| ")
    return {name.strip(): [cell.strip() for cell in cells] for name, *cells in lines}


def study(name: str, dataset: str, folder: Path, *settings: str) -> Study:
    made = Study(name, "")
    made.parse(["-d", dataset, f"--output={folder}", *settings])
    return made


def test_every_row_names_a_model_and_every_figure_a_row() -> None:
    assert {row.model for row in [*ROWS.values(), *modern.MODERN_ROWS.values()]} <= set(MODELS)
    assert set(modern.LAYERS.values()) <= set(LAYER_ROWS)
    for dataset in ("ml-1m", "ml-25m", "alibaba", "amazon-video-games-18"):
        figures = paper_figures(dataset)
        assert set(figures) == set(ROWS) - {"Linear"}
        assert all(f["hit@10"] > f["hit@5"] > f["ndcg@5"] and f["hit@10"] > f["ndcg@10"] for f in figures.values())
    assert list(paper_figures("ml-1m")["Linformer"].values()) == [0.4171, 0.2899, 0.5704, 0.3394]
    assert paper_figures("ml-100k") == {}


def test_the_ranking_shows_mean_spread_and_difference_to_the_paper(tmp_path: Path) -> None:
    results = {"Transformer": [made_up(1, 0.80), made_up(2, 0.79)], "LISA-Soft": [made_up(1, 0.78)], "LSH-4": []}
    settings = ["--user_inter_num_interval=[300,inf)", "--epochs=2"]
    made = study("ranking", "ml-1m", tmp_path, *settings, "--data_path=my data")
    assert sorted(shlex.split(" ".join(made.shared()))) == sorted([*settings, "--data_path=DATA"])
    ranking.write_page(made, results)
    text = (tmp_path / "ml-1m.md").read_text()
    rows = table(text)
    assert rows["Transformer"][2:] == [
        "0.7950 [0.0100]", "0.5450 [0.0100]", "1, 2", "20, 20", "0.7914, 0.5725", "+0.0036, -0.0275",
    ]  # fmt: skip
    assert rows["LISA-Soft"][2] == "0.7800"
    assert rows["LSH-4"] == ["not run"] * 4 + ["-", "-", "0.7627, 0.5408", "-"]
    command = "run_recbole_lisa.py --model=Reformer --n_hashes=4 --dataset=ml-1m --protocol=paper"
    assert command in text
    assert "Spearman" not in text, "two rows"
    points = list(csv.DictReader((tmp_path / "ml-1m-curve.csv").open()))
    assert [(p["row"], p["seed"], p["epoch"], p["hit@10"]) for p in points[:3]] == [
        ("Transformer", "1", "10", "0.8"), ("Transformer", "1", "20", "0.8"), ("Transformer", "2", "10", "0.79")
    ]  # fmt: skip
    assert (tmp_path / "ml-1m-curve.png").read_bytes().startswith(b"\x89PNG")
    (tmp_path / "ml-1m.md").write_text(text + "\nBy hand.\n")
    ranking.write_page(made, {"LISA-Soft": [made_up(1, 0.7)]})
    text = (tmp_path / "ml-1m.md").read_text()
    assert text.endswith("\nBy hand.\n"), "notes below the mark stay"
    assert "paper ranking --dataset=ml-1m --seeds 1 --rows LISA-Soft " in text, "the command of this table"
    hits = {"Transformer": 0.80, "LISA-Soft": 0.78, "LSH-4": 0.79, "Linear": 0.9}  # the paper: .7914, .7887, .7627
    ranking.write_page(made, {row: [made_up(1, hit)] for row, hit in hits.items()})
    expected = "Spearman) of these 3 rows with the paper's: 0.50 by HR@10 (p = 0.67), "
    assert expected in (tmp_path / "ml-1m.md").read_text()
    assert (table(text)["LISA-Soft"][2], text.count(MARK)) == ("0.7000", 1)


def test_the_study_of_w_has_a_row_a_point_and_a_line_for_every_run(tmp_path: Path) -> None:
    names = [(model, w) for model in ("LISASoft", "LISAMini") for w in (16, 96)]
    rows = {f"{sensitivity.MODELS[m]}-{w}": Row(m, {"n_codebooks": 8, "n_codewords": w}) for m, w in names}
    results = {name: [made_up(1, 0.6), made_up(2, 0.7)] if "Soft" in name else [] for name in rows}
    results["LISA-Mini-16"] = [made_up(1, 0.5)]
    made = study("sensitivity", "ml-100k", tmp_path, "--epochs=20")
    sensitivity.write_page(made, rows, results)
    text = made.page.read_text()
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line[:6] == "| LISA"]
    spread = ["0.4500 [0.1000]", "0.3500 [0.1000]", "0.6500 [0.1000]", "0.4000 [0.1000]"]
    assert lines[0] == ["LISA-Soft", "16", *spread, "1, 2"]
    assert lines[3] == ["LISA-Mini", "96", *["not run"] * 4, "-"]
    assert "python -m benchmarks paper sensitivity --dataset=ml-100k --seeds 1 2 --epochs=20" in text
    read = list(csv.DictReader(made.page.with_suffix(".csv").open()))
    assert [(row["model"], row["n_codewords"], row["seed"]) for row in read][-1] == ("LISAMini", "16", "1")
    panel = sensitivity._panel("ml-100k", rows, results, "hit@10")
    assert panel.series["LISA-Mini"] == [(16, 0.5, 0.5, 0.5)]
    assert made.page.with_suffix(".png").read_bytes().startswith(b"\x89PNG")


def test_the_modern_page_shows_metrics_beside_seconds_and_memory(tmp_path: Path, isolated_run_dir: Path) -> None:
    def run(hit: float, seconds: float) -> dict[str, Any]:
        values = (hit - 0.1, hit - 0.2, hit, hit - 0.15)
        test = {name: round(value, 4) for name, value in zip(modern.METRICS, values, strict=True)}
        return {"seed": 1, "test": test, "seconds_per_epoch": seconds, "epochs_run": 40, "best_epoch": 36}

    peaks = [{"row": "LISA-128 soft", "length": 4096, "n": 4, "peak_mb": 10.0, "status": "ok"}]
    (tmp_path / "memory.json").write_text(json.dumps({"rows": [*peaks, {**peaks[0], "length": 512}]}))
    made = study("modern", "ml-1m", tmp_path)
    results = {"LISA-Soft": [run(0.33, 46.04)], "HSTU": [run(0.31, 60)], "LSH-4": []}
    modern.write_page(made, results, modern.read_peaks(str(tmp_path / "memory.json")))
    rows = table(made.page.read_text())
    assert rows["LISA-Soft"] == ["0.2300", "0.1300", "0.3300", "0.1800", "1", "40 (36)", "46.0", "2.50"]
    assert rows["HSTU"][-2:] == ["60.0", "-"]
    assert rows["LSH-4"] == ["not run"] * 4 + ["-"] * 4
    command = "--model=HSTU --recipe=modern --eval_seen=both --valid_metric=NDCG@10_masked --eval_step=2"
    assert f"{command} --dataset=ml-1m --protocol=full_ranking --seed=SEED" in made.page.read_text()
    read = list(csv.DictReader(made.page.with_suffix(".csv").open()))
    assert [(row["row"], row["ndcg@10_masked"]) for row in read] == [("LISA-Soft", "0.18"), ("HSTU", "0.16")]
    assert made.page.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(UsageError, match=r"'none.json' is no result of `python -m benchmarks memory`"):
        modern.read_peaks("none.json")


def test_a_compression_ratio_is_beside_the_papers(tmp_path: Path) -> None:
    sizes = {"float32_bytes": 4000.0, "formula_bytes": 1250.0, "compression_ratio": 3.2, "bytes_on_disk": 1600}
    manifest = {"items": {"n_items": 1000}, "item_table": sizes}
    made = study("compression", "ml-1m", tmp_path, "--seeds", "1", "--hidden_size=16")
    compression.write_page(made, {"LISA-Base": [made_up(1, 0.5)]}, {"LISA-Base": manifest})
    text = made.page.read_text()
    assert "python -m benchmarks paper compression --dataset=ml-1m --seeds 1 --hidden_size=16\n" in text
    assert table(text)["LISA-Base"] == ["1,000", "4,000", "1,250", "3.20", "3.19", "1,600", "2.50"]


@pytest.mark.parametrize("name", ["ranking", "modern", "sensitivity", "migration", "compression"])
def test_an_existing_page_needs_overwrite_and_mark(
    isolated_run_dir: Path, capsys: CaptureFixture[str], name: str
) -> None:
    page = Path("results", "ml-100k.md" if name == "ranking" else f"{name}-ml-100k.md")
    page.parent.mkdir()
    page.write_text("# My notes\n")
    assert main(["paper", name, "-d", "ml-100k"]) == 2
    assert f"'{page}' exists: add --overwrite" in capsys.readouterr().err
    assert main(["paper", name, "-d", "ml-100k", "--overwrite"]) == 2
    assert f"'{page}' was not written by this command and would be lost" in capsys.readouterr().err
    assert page.read_text() == "# My notes\n"
    assert [path.name for path in isolated_run_dir.iterdir()] == ["results"]
