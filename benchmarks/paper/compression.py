"""The paper's compression ratios beside those of real exports."""

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.paper.runs import ROWS, Results, results_of
from benchmarks.paper.study import Study, paper_settings
from benchmarks.report import markdown
from recbole_lisa.saved import bundle_of_checkpoint
from recbole_lisa.serving.export import write_export

PAPER = {
    "alibaba": {"LISA-Base": 24.26, "LISA-Mini": 18.45},
    "ml-1m": {"LISA-Base": 3.19, "LISA-Mini": 2.51},
    "amazon-video-games-18": {"LISA-Base": 13.02, "LISA-Mini": 10.62},
    "ml-25m": {"LISA-Base": 12.78, "LISA-Mini": 10.44},
}
"""Data set -> row -> the paper's ratio."""
_COLUMNS = ("row", "items", "float32 bytes", "coded bytes", "ratio", "the paper", "bytes on disk", "float32 to disk")


def main(arguments: Sequence[str]) -> int:
    """`python -m benchmarks paper compression --dataset=D`; one epoch by default, sizes do not depend on training."""
    study = Study("compression", "Compression ratios of exported item tables.")
    study.parser.set_defaults(seeds=[1])
    study.parse(arguments)
    study.settings.setdefault("epochs", "1")
    runs = study.runs_of({name: ROWS[name] for name in ("LISA-Base", "LISA-Mini")})
    n_failed = study.run(runs)
    results = results_of(runs)
    write_page(study, results, export_all(results, runs[0].folder.parent / "export"))
    return 1 if n_failed else 0


def export_all(results: Results, folder: Path) -> dict[str, dict[str, Any]]:
    """Export the first run of each row; row -> manifest of its export."""
    manifests = {}
    for row, runs in results.items():
        if runs:
            shutil.rmtree(folder / row, ignore_errors=True)
            bundle, _ = bundle_of_checkpoint(runs[0]["checkpoint"])
            manifests[row] = write_export(bundle, folder / row)
    return manifests


def write_page(study: Study, results: Results, manifests: Mapping[str, Mapping[str, Any]]) -> None:
    """Write compression-<dataset>.md."""
    lines = []
    for row, manifest in manifests.items():
        table, paper = manifest["item_table"], PAPER.get(study.options.dataset, {}).get(row)
        coded = [f"{table['formula_bytes']:,.0f}", f"{table['compression_ratio']:.2f}"]
        disk = [f"{table['bytes_on_disk']:,}", f"{table['float32_bytes'] / table['bytes_on_disk']:.2f}"]
        items = [f"{manifest['items']['n_items']:,}", f"{table['float32_bytes']:,.0f}"]
        lines.append([row, *items, *coded, f"{paper:.2f}" if paper else "not in the paper", *disk])
    text = (
        "The ratio is the paper's formula: a table of V x D in float32 to codes of log2(W) bits and codebooks in "
        "float32. The bytes on disk are those of the exported file."
    )
    body = [text, "", markdown(_COLUMNS, lines), "", "```bash", study.command(results), "```"]
    study.write("size of the item table", [*paper_settings(results), *body])
