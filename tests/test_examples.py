"""The examples run, are short, and their notebooks hold the same cells with outputs."""

import importlib.util
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import recbole_lisa

ROOT = Path(__file__).parents[1]
SPEC = importlib.util.spec_from_file_location("notebooks", ROOT / "examples/notebooks.py")
assert SPEC is not None and SPEC.loader is not None
notebooks = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(notebooks)
NEEDS = {"csv_to_service": ["fastapi", "uvicorn", "prometheus_client"], "ray_tuner": ["ray.tune", "pyarrow"]}


@pytest.fixture
def environment(isolated_run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What an example changes in its process is undone."""
    monkeypatch.setattr(sys, "argv", ["example.py"])  # RecBole's Config reads the arguments of the process
    for key in ("RAY_worker_niceness", "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"):
        monkeypatch.setenv(key, "0")
    monkeypatch.setenv("MPLBACKEND", "Agg")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    yield
    recbole_lisa.unregister()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", notebooks.NAMES)
def test_the_example_runs(environment: None, name: str) -> None:
    for module in ["matplotlib", *NEEDS.get(name, [])]:
        pytest.importorskip(module)
    names: dict[str, Any] = {"__name__": "__main__"}
    outputs = []
    for kind, text in notebooks.cells_of(ROOT / f"examples/{name}.py"):
        if kind == "code":
            outputs += notebooks.run_cell(re.sub(r'"epochs": \d+', '"epochs": 1', text), names)
    kinds = {output["output_type"] for output in outputs}
    assert kinds == ({"stream"} if name == "csv_to_service" else {"stream", "display_data"})


@pytest.mark.parametrize("name", notebooks.NAMES)
def test_the_notebook_has_the_cells_of_the_example_and_their_outputs(name: str) -> None:
    file = ROOT / f"examples/{name}.py"
    cells = json.loads(file.with_suffix(".ipynb").read_text(encoding="utf-8"))["cells"]
    assert [(cell["cell_type"], "".join(cell["source"])) for cell in cells] == notebooks.cells_of(file)
    kinds = {output["output_type"] for cell in cells for output in cell.get("outputs", [])}
    assert kinds == ({"stream"} if name == "csv_to_service" else {"stream", "display_data"})
    assert len(file.read_text(encoding="utf-8").splitlines()) < 40


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(SystemExit, match=r"unknown: --help, foo; the examples are .*train"):
        notebooks.main(["foo", "--help", notebooks.NAMES[0]])
