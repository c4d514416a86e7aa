"""What README.md and docs/ show works: the two commands, the options, the Python, the tables, the links, the site."""

import importlib
import re
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pytest import MonkeyPatch

from recbole_lisa.cli.main import main
from recbole_lisa.config.config import LISAConfig
from recbole_lisa.config.properties import properties_path
from recbole_lisa.config.registry import MODELS, OPTIONAL_MODELS

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
FILES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
PAGES = {file.name: file.read_text(encoding="utf-8") for file in FILES}
TEXT = "\n".join(PAGES.values())
PYTHON = [
    pytest.param(code, id=f"{name}-{n}")
    for name, page in PAGES.items()
    for n, code in enumerate(re.findall(r"```python\n(.*?)```", page, re.DOTALL))
]
SHELL = [line.strip() for block in re.findall(r"```bash\n(.*?)```", TEXT, re.DOTALL) for line in block.splitlines()]
COMMANDS = re.findall(r"```bash\n(.*?)\n```", README.partition("## Two commands")[2], re.DOTALL)[:2]
RUNS = dict.fromkeys(line.rpartition("&& ")[2] for line in SHELL if re.search("recbole_lisa.py|recbole-lisa -m", line))


def test_ci_runs_exactly_the_two_commands_of_the_readme(tmp_path: Path) -> None:
    """Run .ci/run with stand-ins that only record what they are asked for."""
    tools, record = tmp_path / "tools", tmp_path / "record"
    tools.mkdir()
    for name in ("python3", "python", "pip"):
        more = FAKE_VENV if name == "python3" else ""
        (tools / name).write_text(f'#!/bin/bash\necho "{name} $*" >> {record}\n{more}')
        (tools / name).chmod(0o755)
    done = subprocess.run(
        ["bash", ROOT / ".ci" / "run"],
        env={"PATH": f"{tools}:/usr/bin:/bin", "TMPDIR": str(tmp_path)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    shown = [line.removeprefix("+ ") for line in done.stdout.splitlines() if line.startswith("+ ")]
    assert shown == [COMMANDS[0], *CHECKS, COMMANDS[1]]
    steps = record.read_text().splitlines()[1:]
    steps.remove("python -c import sys; sys.exit(sys.version_info >= (3, 12))")
    assert steps == [
        "pip install --quiet torch==2.13.0",
        "pip install -e .[test]",
        "pip install --no-deps recbole==1.2.1",
        "python run_recbole_lisa.py --model=LISASoft --dataset=ml-100k --epochs=30",
        *(check.replace("'", "").replace("make docs", SITE) for check in CHECKS),
        "python -m pytest",
    ]
    assert not list(tmp_path.glob("tmp.*")), "the virtual environment is left behind"


CHECKS = [
    "pip install --quiet -e '.[dev,docs]'",
    "python -m ruff check .",
    "python -m ruff format --check .",
    "python -m mypy",
    "make docs",
]
SITE = "python -m sphinx -q -W --keep-going -c docs . build/docs"
FAKE_VENV = 'mkdir -p "$3/bin" && touch "$3/bin/activate"\n'


@pytest.mark.parametrize("line", RUNS)
def test_runs_of_the_readme_have_valid_settings(isolated_run_dir: Path, monkeypatch: MonkeyPatch, line: str) -> None:
    Path("mine.yaml").write_text("epochs: 1\n", encoding="utf-8")
    built: list[LISAConfig] = []

    def run(model: str, dataset: str, **arguments: Any) -> dict[str, Any]:
        built.append(LISAConfig(model, dataset, **arguments))
        return {}

    monkeypatch.setattr("recbole_lisa.quick_start.run", run)
    words = shlex.split(line)
    assert main(words[2:] if words[0] == "python" else words[1:]) == 0
    assert len(built) == 1


def test_a_csv_becomes_recommendations_by_the_commands_of_the_start_page(isolated_run_dir: Path) -> None:
    rows = [f"c{user},sku-{(user + day) % 40},2026-03-0{day}" for user in range(40) for day in range(1, 8)]
    Path("clicks.csv").write_text("\n".join(["customer,sku,date", *rows]), encoding="utf-8")
    lines = [line.strip() for line in PAGES["start.md"].splitlines() if line.strip().startswith("recbole-lisa ")]
    for line in lines[:4]:
        (checkpoint,) = (str(path) for path in Path("saved").glob("*[!t].pth")) if "saved/" in line else ("",)
        words = shlex.split(re.sub(r"saved/\S+", checkpoint, line.replace("--epochs=20", "--epochs=1 --hidden_size=8")))
        assert main(words[1:]) == 0, line
    assert [line.split()[1] for line in lines[:5]] == ["convert", "-m", "recommend", "export", "serve"]
    assert Path("served/manifest.json").is_file()
    assert Path("top.csv").read_text(encoding="utf-8").startswith("user_id,rank,item_id,score")


@pytest.mark.parametrize("code", PYTHON)
def test_python_of_the_pages_runs(isolated_run_dir: Path, monkeypatch: MonkeyPatch, code: str) -> None:
    monkeypatch.setattr("sys.argv", ["page.py"])  # RecBole's own Config reads settings from there
    names: dict[str, Any] = {"__name__": "page"}
    exec(compile(code, "page.md", "exec"), names)
    if "result" in names:
        assert 0 <= names["result"]["test"]["ndcg@10"] <= 1


def test_every_model_data_set_and_protocol_is_named() -> None:
    assert [name for name in (*MODELS, *OPTIONAL_MODELS) if f"| `{name}` |" not in PAGES["models.md"]] == []
    names = [file.stem for part in ("dataset", "protocol") for file in (properties_path() / part).iterdir()]
    assert [name for name in names if f"`{name}`" not in TEXT] == []


def test_every_file_that_the_pages_name_exists() -> None:
    paths = re.findall(r"`((?:recbole_lisa|properties|tests)/[\w./-]+)`", TEXT)
    assert paths
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_every_link_between_pages_leads_to_a_file() -> None:
    for folder in (ROOT, ROOT / "docs", ROOT / "results"):
        for page in folder.glob("*.md"):
            targets = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))
            assert [target for target in targets if not (folder / target).exists()] == [], page


def test_the_readme_is_short() -> None:
    assert len(README.splitlines()) < 160


@pytest.fixture
def site(monkeypatch: MonkeyPatch) -> Callable[[str], Any]:
    """Import a module of docs/_ext or docs/figures."""
    for folder in ("_ext", "figures"):
        monkeypatch.syspath_prepend(str(ROOT / "docs" / folder))
    return importlib.import_module


def test_every_kind_of_error_is_under_one_heading_of_the_troubleshooting_page(site: Callable[[str], Any]) -> None:
    package, messages_of = ROOT / "recbole_lisa", site("error_messages").messages_of
    sections = PAGES["troubleshooting.md"].split("\n## ")[1:]
    named = [file for section in sections for file in " ".join(re.findall("messages of (.+?) -->", section)).split()]
    assert sorted(named) == sorted(
        str(file.relative_to(package)) for file in package.rglob("*.py") if messages_of(file)
    ), "name the file of a new UsageError under a heading of docs/troubleshooting.md, once"


def test_the_page_of_the_http_api_has_every_path_and_code(site: Callable[[str], Any]) -> None:
    pytest.importorskip("fastapi")
    described = site("http_api").describe_api()
    assert "| `k` | whole number of at least 1 | `10` |" in described
    assert "| `histories` | list of (list of (text of at most 1000 characters or whole number)) | required" in described
    sources = [file.read_text(encoding="utf-8") for file in (ROOT / "recbole_lisa/serving/http").glob("*.py")]
    codes = [code for text in sources for code in re.findall(r'RefusalError\(\d+, "(\w+)"', text)]
    assert codes and all(f"`{code}`" in PAGES["http-api.md"] for code in codes)


def test_pictures_are_drawn_by_their_code(site: Callable[[str], Any], monkeypatch: MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(site("lisa"), "FOLDER", tmp_path)
    site("lisa").main()
    site("results").main()
    drawn = {file.name for file in tmp_path.iterdir()}
    assert drawn == {file.name for file in (ROOT / "docs/figures").glob("*.png")}
