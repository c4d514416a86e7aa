import json
import tarfile
import time
from pathlib import Path
from typing import Any

import pytest
from pytest import MonkeyPatch

from benchmarks import gpu, main
from benchmarks.gpu import Part, run_part
from recbole_lisa.cli.main import main as run_program

QUICK = ["gpu", "--quick", "--device", "cpu", "--output", "out"]


@pytest.fixture
def scripts(isolated_run_dir: Path, monkeypatch: MonkeyPatch) -> Path:
    """Modules that a part can run: good prints and writes, bad fails, hang starts a child and waits."""
    monkeypatch.setenv("PYTHONPATH", str(isolated_run_dir))
    write = "open('good.md', 'w').write('the table of good\\n![x](x.png)\\n')"
    child = "import pathlib, time\ntime.sleep(4)\npathlib.Path('late').touch()"
    hang = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {child!r}])"
    texts = {"good": f"print('hello')\n{write}", "bad": "print('why')\nraise SystemExit(3)", "hang": hang}
    for name, text in texts.items():
        (isolated_run_dir / f"{name}.py").write_text(text)
    return isolated_run_dir


def test_a_part_that_fails_or_hangs_is_noted_and_stopped_with_its_children(scripts: Path) -> None:
    assert run_part(Part("good", ["good"]), scripts, 60).status == "done"
    assert (scripts / "good.log").read_text(encoding="utf-8") == "hello\n"
    assert run_part(Part("bad", ["bad"]), scripts, 60).status == "failed (status 3)"
    assert run_part(Part("hang", ["hang"]), scripts, 1).status == "stopped after 1 s"
    time.sleep(4.5)
    assert not (scripts / "late").exists()


def test_every_part_ends_in_the_tables(scripts: Path, monkeypatch: MonkeyPatch) -> None:
    limits = []

    def remember(part: Part, folder: Path, seconds: float) -> gpu.Outcome:
        limits.append(seconds)
        return run_part(part, folder, seconds)

    def parts(options: Any, folder: Path) -> tuple[list[Part], list[gpu.Outcome]]:
        _, missing = parts_of(options, folder)
        return [Part("good", ["good"], 1.0), Part("bad", ["bad"], 3.0)], missing

    parts_of = gpu.parts_of
    monkeypatch.setattr(gpu, "parts_of", parts)
    monkeypatch.setattr(gpu, "run_part", remember)
    assert main([*QUICK, "--budget_s", "400"]) == 0
    assert limits[0] == pytest.approx(100, abs=1), "a quarter of the weights"
    assert 300 < limits[1] <= 400, "the time that the first part left"
    text = Path("out/gpu.md").read_text(encoding="utf-8")
    for line in ("(there is no folder tests)", "(there is no dataset/ml-1m/ml-1m.inter)", "(status 3)", "why"):
        assert line in text
    assert "the table of good" in text and "![" not in text
    with tarfile.open("out/gpu.tar.gz") as archive:
        assert {"gpu.md", "parts/good.md", "parts/good.log", "parts/bad.log"} <= set(archive.getnames())
    rows = json.loads(Path("out/gpu.json").read_text(encoding="utf-8"))["parts"]
    assert [row["status"] for row in rows][2:] == ["done", "failed (status 3)"]


def test_only_the_tests_marked_gpu_are_run(isolated_run_dir: Path) -> None:
    Path("mine").mkdir()
    Path("mine/test_it.py").write_text(
        "import pytest\n\n@pytest.mark.gpu\ndef test_chosen(): pass\n\ndef test_not_chosen(): assert False\n"
    )
    assert main([*QUICK, "--parts", "tests", "--tests", "mine"]) == 0
    text = Path("out/gpu.md").read_text(encoding="utf-8")
    assert "1 passed, 1 deselected" in text


@pytest.mark.parametrize("quick", [False, True])
def test_commands_of_parts_have_valid_arguments(isolated_run_dir: Path, monkeypatch: MonkeyPatch, quick: bool) -> None:
    """Each part is called with a function in place of its work."""
    started: list[str] = []

    def record(part: Part, folder: Path, seconds: float) -> gpu.Outcome:
        program, name, *_ = part.arguments
        if program == "benchmarks":
            monkeypatch.setattr(f"benchmarks.{name}.run", lambda options: started.append(name))
            assert main(list(part.arguments[1:])) == 0
        else:
            run = "recbole_lisa.quick_start.run"
            monkeypatch.setattr(run, lambda model, dataset, **settings: started.append(model))
            assert run_program(list(part.arguments[1:])) == 0
            result = {"test": {"hit@10": 0.5, "ndcg@10": 0.25}, "epochs_run": 2}
            seconds_of_run = {"seconds_per_epoch": 1.5, "seconds": 4.0}
            (folder / f"{part.name}.json").write_text(json.dumps({**result, **seconds_of_run}))
        return gpu.Outcome(part.name, "done")

    monkeypatch.setattr(gpu, "run_part", record)
    arguments = ["gpu", "--device", "cpu", "--output", "out", "--dataset", "ml-100k", *(["--quick"] if quick else [])]
    assert main(arguments) == 0
    expected = ["attention", "memory", "step", "LISASoft", "LISABase", "Transformer"]
    assert list(dict.fromkeys(started)) == expected
    text = Path("out/gpu.md").read_text(encoding="utf-8")
    cells = [cell.strip() for cell in text.split("| Transformer")[1].split("|")]
    assert cells[1:6] == ["2", "0.5000", "0.2500", "1.50", "4"]


@pytest.mark.slow
def test_everything_runs_end_to_end_at_tiny_sizes(isolated_run_dir: Path) -> None:
    assert main([*QUICK, "--dataset", "ml-100k", "--models", "LISASoft", "--epochs", "1", "--budget_s", "900"]) == 0
    parts = json.loads(Path("out/gpu.json").read_text(encoding="utf-8"))["parts"]
    assert {part["name"]: part["status"] for part in parts if part["name"] != "tests"} == dict.fromkeys(
        ("attention", "memory", "step", "training-LISASoft"), "done"
    )
    text = Path("out/gpu.md").read_text(encoding="utf-8")
    assert all(part in text for part in ("LISA-128", "Training step", "| LISASoft "))
