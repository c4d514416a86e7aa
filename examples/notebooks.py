"""Run the examples and write them as notebooks with their outputs: `python examples/notebooks.py [NAME ...]`.

A notebook shows what the cells print and draw. Warnings and the output of other processes are left out.
"""

import base64
import contextlib
import io
import json
import os
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
NAMES = sorted(file.stem for file in FOLDER.glob("*.py") if file != Path(__file__))


def cells_of(file: Path) -> list[tuple[str, str]]:
    """The cells of an example in percent format, each with its type, markdown or code."""
    cells = []
    for part in file.read_text(encoding="utf-8").split("# %%")[1:]:
        head, _, text = part.partition("\n")
        lines = text.strip().splitlines()
        if head.strip() == "[markdown]":
            cells.append(("markdown", "\n".join(line.removeprefix("#").removeprefix(" ") for line in lines)))
        else:
            cells.append(("code", "\n".join(lines)))
    return cells


def run_cell(code: str, names: dict[str, Any]) -> list[dict[str, Any]]:
    """Run a cell; its printed text and its figures as outputs of a notebook."""
    from matplotlib import pyplot as plt

    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, "cell", "exec"), names)
    outputs: list[dict[str, Any]] = []
    if printed.getvalue():
        outputs.append(
            {"output_type": "stream", "name": "stdout", "text": printed.getvalue().splitlines(keepends=True)}
        )
    for number in plt.get_fignums():
        image = io.BytesIO()
        plt.figure(number).savefig(image, format="png", dpi=80, bbox_inches="tight")
        data = {"image/png": base64.b64encode(image.getvalue()).decode()}
        outputs.append({"output_type": "display_data", "data": data, "metadata": {}})
    plt.close("all")
    return outputs


def notebook_of(name: str) -> dict[str, Any]:
    """Run an example in an empty folder; the notebook."""
    names: dict[str, Any] = {"__name__": "__main__"}
    cells: list[dict[str, Any]] = []
    for kind, text in cells_of(FOLDER / f"{name}.py"):
        cell = {"cell_type": kind, "id": f"cell-{len(cells)}", "metadata": {}, "source": text.splitlines(keepends=True)}
        if kind == "code":
            cell |= {"execution_count": len(cells), "outputs": run_cell(text, names)}
        cells.append(cell)
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    return {"cells": cells, "metadata": kernel, "nbformat": 4, "nbformat_minor": 5}


def main(chosen: list[str]) -> None:
    """Write the notebooks of some or all examples."""
    if unknown := {*chosen} - {*NAMES}:
        sys.exit(
            f"unknown: {', '.join(sorted(unknown))}; the examples are {', '.join(NAMES)}, without a name all are run"
        )
    warnings.simplefilter("ignore")
    quiet = {"MPLBACKEND": "Agg", "RAY_AIR_NEW_OUTPUT": "0"}  # without a window, and without Ray's table of trials
    os.environ |= {**quiet, "PYTHONPATH": os.pathsep.join([str(FOLDER.parent), *sys.path])}
    start = Path.cwd()
    for name in chosen or NAMES:
        begun = time.perf_counter()
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)
            notebook = notebook_of(name)
            os.chdir(start)
        (FOLDER / f"{name}.ipynb").write_text(json.dumps(notebook, indent=1) + "\n", encoding="utf-8")
        print(f"{name}: {time.perf_counter() - begun:.0f} s")


if __name__ == "__main__":
    main(sys.argv[1:])
