"""A wheel holds everything, and `properties/` is found from a wheel, a checkout and an editable install."""

import configparser
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import yaml

import recbole_lisa
from recbole_lisa.config import properties
from recbole_lisa.config.registry import MODELS
from recbole_lisa.errors import INSTALL_RECBOLE
from tests.helpers import ROOT, run_python
from tests.tiny import write_tiny_dataset

SHOW_PROPERTIES = "from recbole_lisa.config.properties import properties_path; print(properties_path())"


def build_wheel(folder: Path) -> Path:
    """A wheel built from a copy in an empty folder, so that nothing is written into the tree."""
    for name in ("setup.cfg", "setup.py", "pyproject.toml", "README.md", "LICENSE", "MANIFEST.in"):
        shutil.copy(ROOT / name, folder)
    for name in ("recbole_lisa", "properties"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    build = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "-q", "-w", "dist", "."]
    done = subprocess.run(build, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return next((folder / "dist").glob("*.whl"))


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(tmp_path_factory.mktemp("source"))


def test_the_wheel_holds_every_module_and_every_yaml_file(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    modules = {file.relative_to(ROOT).as_posix() for file in (ROOT / "recbole_lisa").rglob("*.py")}
    yaml_files = {file.relative_to(ROOT / "properties") for file in (ROOT / "properties").rglob("*.yaml")}
    others = {file.relative_to(ROOT).as_posix() for file in (ROOT / "recbole_lisa").rglob("*.[hs][th]*")}
    assert len(others) == 3 and modules | others | {"recbole_lisa/py.typed"} <= names
    assert {f"recbole_lisa/_properties/{file.as_posix()}" for file in yaml_files} <= names
    assert not any(name.startswith("tests/") for name in names)


def test_the_wheel_finds_its_properties_from_another_folder(wheel: Path, tmp_path: Path) -> None:
    zipfile.ZipFile(wheel).extractall(tmp_path / "site")
    code = f"import sys; sys.path.insert(0, {str(tmp_path / 'site')!r}); {SHOW_PROPERTIES}"
    assert run_python(code, cwd=tmp_path)[0] == f"{tmp_path / 'site' / 'recbole_lisa' / '_properties'}\n"


def test_a_checkout_uses_the_top_level_properties(tmp_path: Path) -> None:
    assert run_python(SHOW_PROPERTIES, cwd=tmp_path)[0] == f"{ROOT / 'properties'}\n"


def test_properties_that_are_nowhere_are_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(properties, "__file__", str(tmp_path / "recbole_lisa" / "config" / "properties.py"))
    with pytest.raises(FileNotFoundError, match=r"overall\.yaml is neither in .*_properties nor in .*properties"):
        properties.properties_path()


def test_the_citation_names_the_version_and_the_license() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert (citation["version"], citation["license"]) == (recbole_lisa.__version__, "MIT")
    assert len(citation["preferred-citation"]["authors"]) == 7


def test_every_pin_has_its_reason_beside_it() -> None:
    parser = configparser.ConfigParser()
    parser.read(ROOT / "setup.cfg")
    lines = (ROOT / "setup.cfg").read_text(encoding="utf-8").splitlines()
    pinned = [line for line in parser["options"]["install_requires"].splitlines() if "<" in line or "==" in line]
    assert pinned
    for requirement in pinned:
        at = lines.index(f"    {requirement}")
        assert lines[at - 1].startswith("    # "), f"no reason above {requirement}"


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
    command, environment = [sys.executable, "recbole_pipeline.py", "LISABase"], {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=empty, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.splitlines()[-1] == str(ROOT / "recbole_lisa")
