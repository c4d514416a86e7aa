"""The wheel alone, in a fresh environment and an empty folder: RecBole's own functions and our commands."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from recbole_lisa.config.registry import MODELS
from recbole_lisa.errors import INSTALL_RECBOLE
from tests.tiny import write_tiny_dataset
from tests.wheel import ROOT, build_wheel


def run(*words: str | Path, folder: Path) -> str:
    """Run a command that sees nothing of this checkout; its standard output."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "VIRTUAL_ENV"))}
    done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    return done.stdout


@pytest.fixture
def empty(tmp_path: Path) -> Path:
    """An empty folder but for the data set `tiny` and the program."""
    folder = tmp_path / "empty"
    folder.mkdir()
    write_tiny_dataset(folder)
    shutil.copy(ROOT / "tests" / "plugin" / "recbole_pipeline.py", folder)
    return folder


@pytest.fixture
def tools(tmp_path: Path) -> Iterator[Path]:
    """The programs of a fresh environment with the wheel; it is large, and goes afterwards."""
    (tmp_path / "source").mkdir()
    wheel = build_wheel(tmp_path / "source")
    run(sys.executable, "-m", "venv", "fresh", folder=tmp_path)
    tools = tmp_path / "fresh" / ("Scripts" if os.name == "nt" else "bin")
    # torch first, so that the build of the local index is taken where there is one.
    run(tools / "pip", "install", "-q", f"torch=={torch.__version__.partition('+')[0]}", folder=tmp_path)
    run(tools / "pip", "install", "-q", wheel, folder=tmp_path)
    run(tools / "pip", "install", "-q", *INSTALL_RECBOLE.split()[2:], folder=tmp_path)
    yield tools
    shutil.rmtree(tmp_path / "fresh")


@pytest.mark.slow
def test_all_models_work_from_the_wheel_in_functions_of_recbole_and_in_commands(tools: Path, empty: Path) -> None:
    check = subprocess.run([tools / "pip", "check"], cwd=empty, capture_output=True, text=True, check=False)
    problems = [line for line in check.stdout.splitlines() if not line.startswith("recbole 1.2.1 has requirement ray")]
    assert problems == ([] if sys.version_info >= (3, 12) else ["No broken requirements found."])
    *lines, place = run(tools / "python", "recbole_pipeline.py", *MODELS, folder=empty).splitlines()
    assert Path(place).is_relative_to(tools.parent)
    assert [line.split()[:2] for line in lines if " ok: " in line] == [[name, "ok:"] for name in MODELS]
    words = ["--data_path=.", "--epochs=1", "--hidden_size=8", "--use_gpu=False", "--show_progress=False"]
    table = run(tools / "recbole-lisa", "-m", "LISASoft", "-d", "tiny", *words, folder=empty)
    assert "ndcg@10" in table


def test_the_program_works_with_one_model(empty: Path) -> None:
    done = subprocess.run(
        [sys.executable, "recbole_pipeline.py", "LISABase"],
        cwd=empty,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.splitlines()[-1] == str(ROOT / "recbole_lisa")
