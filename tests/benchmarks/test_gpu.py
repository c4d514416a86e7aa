import json
import sys
import tarfile
import time
from pathlib import Path
from typing import Any

import pytest

from benchmarks import gpu, main
from benchmarks.gpu import Part, run_part
from recbole_lisa.cli.main import main as run_program

QUICK = ["gpu", "--quick", "--device", "cpu", "--output", "out"]


def python(code: str) -> tuple[str, ...]:
    return sys.executable, "-c", code


def test_a_part_that_fails_or_hangs_is_noted_and_stopped_with_its_children(tmp_path: Path) -> None:
    assert run_part(Part("good", python("print('hello')"), 1.0), tmp_path, 60).status == "done"
    assert (tmp_path / "good.log").read_text(encoding="utf-8") == "hello\n"
    assert run_part(Part("bad", python("raise SystemExit(3)"), 1.0), tmp_path, 60).status == "failed (status 3)"
    child = "import pathlib, time\ntime.sleep(4)\npathlib.Path('late').touch()"
    hang = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {child!r}])"
    outcome = run_part(Part("hang", python(hang), 1.0), tmp_path, 1)
    assert outcome.status == "stopped after 1 s"
    time.sleep(4.5)
    assert not (tmp_path / "late").exists()


def test_every_part_ends_in_the_tables_whatever_happened(
    isolated_run_dir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    limits = []

    def parts(options: Any, folder: Path) -> list[Part]:
        write = "import pathlib; pathlib.Path('one.md').write_text('the table of one\\n![x](x.png)\\n')"
        return [Part("one", python(write), 1.0), Part("two", python("print('why'); raise SystemExit(1)"), 3.0)]

    def remember(part: Part, folder: Path, seconds: float) -> gpu.Outcome:
        limits.append(seconds)
        return run_part(part, folder, seconds)

    monkeypatch.setattr(gpu, "benchmark_parts", parts)
    monkeypatch.setattr(gpu, "run_part", remember)
    assert main([*QUICK, "--budget_s", "400"]) == 0
    assert limits[0] == pytest.approx(100, abs=1), "a quarter of the weights"
    assert 300 < limits[1] <= 400, "what the first left is there for the second"
    text = Path("out/gpu.md").read_text(encoding="utf-8")
    for line in (
        "left out (there is no folder tests)",
        "left out (there is no dataset/ml-1m/ml-1m.inter)",
        "failed (status 1)",
        "the table of one",
        "why",
    ):
        assert line in text
    assert "![" not in text
    with tarfile.open("out/gpu.tar.gz") as archive:
        assert {"gpu.md", "parts/one.md", "parts/one.log", "parts/two.log"} <= set(archive.getnames())
    rows = json.loads(Path("out/gpu.json").read_text(encoding="utf-8"))["parts"]
    assert [row["status"] for row in rows][:2] == ["done", "failed (status 1)"]
    assert "failed (status 1)" in capsys.readouterr().out


def test_only_the_tests_marked_gpu_are_run(isolated_run_dir: Path) -> None:
    Path("mine").mkdir()
    Path("mine/test_it.py").write_text(
        "import pytest\n\n@pytest.mark.gpu\ndef test_chosen(): pass\n\ndef test_not_chosen(): assert False\n"
    )
    assert main([*QUICK, "--parts", "tests", "--tests", "mine"]) == 0
    text = Path("out/gpu.md").read_text(encoding="utf-8")
    assert "1 passed, 1 deselected" in text
    assert "| tests | done" in text


@pytest.mark.parametrize("quick", [False, True])
def test_the_commands_of_the_parts_are_ones_that_the_program_knows(
    isolated_run_dir: Path, monkeypatch: pytest.MonkeyPatch, quick: bool
) -> None:
    """Every benchmark is started with a stand-in for its work: only its options are read."""
    started: list[str] = []

    def record(part: Part, folder: Path, seconds: float) -> gpu.Outcome:
        if part.words[2] == "benchmarks":
            verb = part.words[3]
            monkeypatch.setattr(f"benchmarks.{verb}.run", lambda options: started.append(verb))
            assert main(list(part.words[3:])) == 0
        return gpu.Outcome(part, "done", 0.0)

    monkeypatch.setattr(gpu, "run_part", record)
    monkeypatch.setattr(gpu, "collect", lambda folder, outcomes: None)
    words = ["gpu", "--device", "cpu", "--output", "out", *(["--quick"] if quick else [])]
    assert main(words) == 0
    assert list(dict.fromkeys(started)) == ["attention", "memory", "online", "step"]


def test_the_trainings_have_valid_settings(isolated_run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[dict[str, Any]] = []

    def record(part: Part, folder: Path, seconds: float) -> gpu.Outcome:
        run = "recbole_lisa.quick_start.run"
        monkeypatch.setattr(run, lambda model, dataset, **rest: seen.append({"model": model, **rest}))
        assert run_program(list(part.words[3:])) == 0
        result = {"test": {"hit@10": 0.5, "ndcg@10": 0.25}, "epochs_run": 2, "seconds_per_epoch": 1.5, "seconds": 4.0}
        (folder / f"{part.name}.json").write_text(json.dumps(result))
        return gpu.Outcome(part, "done", 4.0)

    monkeypatch.setattr(gpu, "run_part", record)
    monkeypatch.setattr(gpu, "collect", lambda folder, outcomes: None)
    assert main([*QUICK, "--parts", "training", "--dataset", "ml-100k", "--epochs", "2"]) == 0
    assert [run["model"] for run in seen] == ["LISASoft", "LISABase", "Transformer"]
    assert {run["command_line"]["epochs"] for run in seen} == {"2"}
    assert {run["command_line"]["use_gpu"] for run in seen} == {"False"}
    assert "| Transformer | 2      | 0.5000 | 0.2500  | 1.50" in Path("out/gpu.md").read_text(encoding="utf-8")


@pytest.mark.slow
def test_everything_runs_end_to_end_at_tiny_sizes(isolated_run_dir: Path) -> None:
    assert main([*QUICK, "--dataset", "ml-100k", "--models", "LISASoft", "--epochs", "1", "--budget_s", "900"]) == 0
    parts = json.loads(Path("out/gpu.json").read_text(encoding="utf-8"))["parts"]
    assert {part["part"][0]: part["status"] for part in parts if part["part"][0] != "tests"} == dict.fromkeys(
        ("attention", "memory", "online", "step", "training-LISASoft"), "done"
    )
    text = Path("out/gpu.md").read_text(encoding="utf-8")
    assert "LISA-128" in text
    assert "Training step" in text
    assert "| LISASoft |" in text


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("gpu --device cpu", "the following arguments are required: --output"),
        ("gpu --device cpu --output x.json", "--output=x.json must be a folder"),
        ("gpu --device cpu --output out --parts heart", "invalid choice: 'heart'"),
    ],
)
def test_mistakes_end_with_one_line_and_status_2(
    isolated_run_dir: Path, capsys: pytest.CaptureFixture[str], words: str, message: str
) -> None:
    assert main(words.split()) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert message in line
