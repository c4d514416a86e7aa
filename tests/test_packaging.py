"""A wheel holds everything, and `properties/` is found from a wheel, a checkout and an editable install."""

import configparser
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import yaml
from setuptools import find_packages

import recbole_lisa
from recbole_lisa.config import properties
from tests.wheel import ROOT, build_wheel

SHOW_PROPERTIES = "from recbole_lisa.config.properties import properties_path; print(properties_path())"


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


def test_every_folder_with_modules_is_a_package() -> None:
    folders = {file.parent.relative_to(ROOT) for file in (ROOT / "recbole_lisa").rglob("*.py")}
    assert {".".join(folder.parts) for folder in folders} == set(find_packages(str(ROOT), include=["recbole_lisa*"]))


def test_the_wheel_finds_its_properties_from_another_folder(wheel: Path, tmp_path: Path) -> None:
    zipfile.ZipFile(wheel).extractall(tmp_path / "site")
    code = f"import sys; sys.path.insert(0, {str(tmp_path / 'site')!r}); {SHOW_PROPERTIES}"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert Path(done.stdout.strip()) == tmp_path / "site" / "recbole_lisa" / "_properties"


def test_a_checkout_uses_the_top_level_properties(tmp_path: Path) -> None:
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r}); {SHOW_PROPERTIES}"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert Path(done.stdout.strip()) == ROOT / "properties"


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
