"""What the README shows works: its two commands, its options, its Python, its tables."""

import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest

from recbole_lisa.cli.main import main
from recbole_lisa.config.config import LISAConfig
from recbole_lisa.config.properties import properties_path
from recbole_lisa.config.registry import MODELS, OPTIONAL_MODELS

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
PYTHON = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
SHELL = [line for block in re.findall(r"```bash\n(.*?)```", README, re.DOTALL) for line in block.splitlines()]
RUNS = [
    line.partition("&& ")[2] or line for line in SHELL if "run_recbole_lisa.py" in line or "recbole-lisa -m" in line
]


def test_ci_runs_exactly_the_two_commands_of_the_readme(tmp_path: Path) -> None:
    """Run .ci/run with stand-ins that only record what they are asked for."""
    tools, record = tmp_path / "tools", tmp_path / "record"
    tools.mkdir()
    for name in ("python3", "python", "pip"):
        (tools / name).write_text(
            f'#!/bin/bash\necho "{name} $*" >> {record}\n{FAKE_VENV if name == "python3" else ""}'
        )
        (tools / name).chmod(0o755)
    done = subprocess.run(
        ["bash", ROOT / ".ci" / "run"],
        env={"PATH": f"{tools}:/usr/bin:/bin", "TMPDIR": str(tmp_path)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert [line.removeprefix("+ ") for line in done.stdout.splitlines()] == SHELL[:2]
    assert record.read_text().splitlines()[1:] == [
        "pip install --quiet torch==2.13.0",
        "pip install -e .[test]",
        "python run_recbole_lisa.py --model=LISASoft --dataset=ml-100k --epochs=30",
        "python -m pytest",
    ]
    assert not list(tmp_path.glob("tmp.*")), "the virtual environment is left behind"


FAKE_VENV = 'mkdir -p "$3/bin" && touch "$3/bin/activate"\n'


@pytest.mark.parametrize("line", RUNS)
def test_every_run_of_the_readme_has_valid_settings(
    isolated_run_dir: Path, monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    Path("mine.yaml").write_text("epochs: 1\n", encoding="utf-8")
    built: list[LISAConfig] = []

    def run(model: str, dataset: str, **arguments: Any) -> dict[str, Any]:
        built.append(LISAConfig(model, dataset, **arguments))
        return {}

    monkeypatch.setattr("recbole_lisa.quick_start.run", run)
    words = shlex.split(line)
    assert main(words[2:] if words[0] == "python" else words[1:]) == 0
    assert len(built) == 1


def test_the_conversion_of_the_readme_works(isolated_run_dir: Path) -> None:
    (line,) = (line for line in SHELL if line.startswith("recbole-lisa convert"))
    Path("clicks.csv").write_text("customer,sku,date\nu,i,2020-01-01\n", encoding="utf-8")
    assert main(shlex.split(line)[1:]) == 0
    assert Path("dataset/clicks/clicks.inter").is_file()


@pytest.mark.parametrize("code", PYTHON, ids=range(len(PYTHON)))
def test_python_of_the_readme_runs(isolated_run_dir: Path, monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    monkeypatch.setattr("sys.argv", ["readme.py"])  # RecBole's own Config reads settings from there
    names: dict[str, Any] = {"__name__": "readme"}
    exec(compile(code, "README.md", "exec"), names)
    if "result" in names:
        assert 0 <= names["result"]["test"]["ndcg@10"] <= 1


@pytest.mark.parametrize("name", [*MODELS, *OPTIONAL_MODELS])
def test_every_model_is_in_the_table(name: str) -> None:
    assert f"| `{name}` |" in README


def test_every_data_set_and_protocol_is_named() -> None:
    names = [file.stem for part in ("dataset", "protocol") for file in (properties_path() / part).iterdir()]
    assert [name for name in names if f"`{name}`" not in README] == []


def test_every_file_the_readme_names_exists() -> None:
    paths = re.findall(r"`((?:recbole_lisa|properties|tests)/[\w./-]+)`", README)
    assert paths
    assert [path for path in paths if not (ROOT / path).exists()] == []
