"""Imports point one way, and the package imports neither RecBole nor ray nor torch by itself."""

import ast
from collections.abc import Iterator
from graphlib import TopologicalSorter
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.helpers import run_python

PACKAGE = Path(__file__).parent.parent / "recbole_lisa"
FILES = [PACKAGE / "__init__.py", *sorted(set(PACKAGE.rglob("*.py")) - {PACKAGE / "__init__.py"})]
IDS = [file.relative_to(PACKAGE).as_posix() for file in FILES]

# A part may import parts of its own level and of the levels above it in this list.
LEVELS: list[set[str]] = [
    {"errors", "environment", "progress"},
    {"files"},
    {"ops"},
    {"attention"},
    {"layers"},
    {"config"},
    {"datasets", "distributed"},
    {"data"},
    {"model"},
    {"serving"},
    {"training"},
    {"saved"},
    {"item_codes"},
    {"quick_start", "plugin"},
    {"migration"},
    {"tuning"},
    {"cli"},
    {"__main__"},
]
LEVEL_OF = {part: level for level, parts in enumerate(LEVELS) for part in parts}
OF_EXTRA_SERVE = [
    f"recbole_lisa.serving.http.{name}"
    for name in ("app", "middleware", "model_thread", "refusals", "server", "stores")
]
WITHOUT_RECBOLE = ("ops", "attention", "layers", "serving")


def imported(file: Path) -> Iterator[str]:
    """Yield the full name of every module or member that a file imports, wherever in the file."""
    folders = file.relative_to(PACKAGE.parent).parts[:-1]
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(folders[: len(folders) - node.level + 1]) if node.level else ""
            module = ".".join(part for part in (base, node.module) if part)
            yield from (f"{module}.{alias.name}" for alias in node.names)


def part_of(file: Path) -> str:
    """Name the part of the package that a file belongs to: its folder, or itself at the top."""
    return file.relative_to(PACKAGE).parts[0].removesuffix(".py")


def own_parts(file: Path) -> set[str]:
    """Name the other parts of the package that a file imports."""
    names = [name.split(".") for name in imported(file)]
    parts = {name[1] for name in names if name[0] == "recbole_lisa" and len(name) > 1}
    return {part for part in parts if not part.startswith("__")} - {part_of(file)}


def test_every_part_has_a_level() -> None:
    assert {part_of(file) for file in FILES} - {"__init__"} <= set(LEVEL_OF)


@pytest.mark.parametrize("file", FILES, ids=IDS)
def test_a_part_imports_only_its_own_level_and_those_below(file: Path) -> None:
    if part_of(file) == "__init__":  # the public interface, see test_importing_the_package_imports_no_heavy_package
        return
    own_level = LEVEL_OF[part_of(file)]
    back_edges = {part for part in own_parts(file) if LEVEL_OF[part] > own_level}
    assert back_edges == set()
    if own_level == 0:
        assert own_parts(file) == set()


def module_of(file: Path) -> str:
    """The dotted name of a module."""
    return ".".join(file.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")


def import_graph(files: list[Path]) -> dict[str, set[str]]:
    """Module -> modules of ours that it imports."""
    modules = {module_of(file): file for file in files}
    graph: dict[str, set[str]] = {}
    for module, file in modules.items():
        names = {name if name in modules else name.rsplit(".", 1)[0] for name in imported(file)}
        graph[module] = {name for name in names if name in modules} - {module}
    return graph


def test_no_files_import_each_other() -> None:
    benchmarks = sorted((PACKAGE.parent / "benchmarks").rglob("*.py"))
    graph = import_graph([*FILES[1:], *benchmarks])  # without __init__.py, the public interface above all
    assert set(TopologicalSorter(graph).static_order()) == graph.keys(), "CycleError names a circle"


def test_the_package_imports_no_benchmark() -> None:
    assert {module_of(file) for file in FILES if any(name.startswith("benchmarks") for name in imported(file))} == set()


@pytest.mark.parametrize("file", FILES, ids=IDS)
def test_no_file_imports_what_its_part_must_not(file: Path) -> None:
    names = set(imported(file))
    roots = {name.split(".")[0] for name in names}
    assert "ray" not in roots or file.parent == PACKAGE / "tuning"
    assert not any(name.startswith("recbole.quick_start") for name in names), "it imports ray"
    if part_of(file) in WITHOUT_RECBOLE:
        assert "recbole" not in roots


@pytest.mark.parametrize("file", sorted((PACKAGE / "ops").rglob("*.py")), ids=lambda file: file.name)
def test_ops_define_no_module(file: Path) -> None:
    tree = ast.parse(file.read_text(encoding="utf-8"))
    bases = [ast.unparse(base) for node in ast.walk(tree) if isinstance(node, ast.ClassDef) for base in node.bases]
    assert [base for base in bases if base.split(".")[-1] == "Module"] == []


def test_imported_reads_absolute_relative_and_nested_imports(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(globals(), "PACKAGE", tmp_path / "recbole_lisa")
    file = tmp_path / "recbole_lisa" / "ops" / "new.py"
    file.parent.mkdir(parents=True)
    file.write_text("import os.path\nfrom . import naive\nfrom ..model import a\ndef f():\n    from recbole import b\n")
    assert set(imported(file)) == {"os.path", "recbole_lisa.ops.naive", "recbole_lisa.model.a", "recbole.b"}
    assert own_parts(file) == {"model"}


def test_importing_the_package_imports_no_heavy_package() -> None:
    code = "import sys, recbole_lisa; print([name for name in ('recbole', 'ray', 'torch') if name in sys.modules])"
    assert run_python(code)[0] == "[]\n"


def test_everything_works_without_ray() -> None:
    # None in sys.modules makes every later `import ray` fail, as if it were not installed.
    modules = [".".join(["recbole_lisa", *file.relative_to(PACKAGE).with_suffix("").parts]) for file in FILES]
    modules = [module.removesuffix(".__init__") for module in modules if not module.endswith("__main__")]
    if find_spec("triton") is None:
        modules.remove("recbole_lisa.ops.lisa.triton_kernels")
    if find_spec("fastapi") is None:
        modules = [module for module in modules if module not in OF_EXTRA_SERVE]
    code = (
        "import sys, importlib; sys.modules['ray'] = None\n"
        f"for module in {modules!r}: importlib.import_module(module)\n"
        "from recbole_lisa.config.config import LISAConfig\n"
        "print(LISAConfig('LISASoft', 'ml-100k')['model'])"
    )
    assert run_python(code)[0] == "LISASoft\n"
