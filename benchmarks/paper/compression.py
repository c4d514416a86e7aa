"""The paper's compression ratios beside those of real exports."""

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.paper.page import Results, write_text
from recbole_lisa.saved import bundle_of_checkpoint
from recbole_lisa.serving.export import write_export

PAPER = {
    "alibaba": {"LISA-Base": 24.26, "LISA-Mini": 18.45},
    "ml-1m": {"LISA-Base": 3.19, "LISA-Mini": 2.51},
    "amazon-video-games-18": {"LISA-Base": 13.02, "LISA-Mini": 10.62},
    "ml-25m": {"LISA-Base": 12.78, "LISA-Mini": 10.44},
}
"""Data set -> row -> the paper's ratio."""


def export_all(found: Results, folder: Path) -> dict[str, dict[str, Any]]:
    """Export the first run of each row.

    Args:
        found: row -> results of its seeds.
        folder: the exports go into `export` below it, over those of an earlier call.

    Returns:
        Row -> manifest of its export, for the rows with a run.
    """
    manifests = {}
    for row, runs in found.items():
        if runs:
            place = folder / "export" / runs[0]["dataset"] / row
            shutil.rmtree(place, ignore_errors=True)
            bundle, _ = bundle_of_checkpoint(runs[0]["checkpoint"])
            manifests[row] = write_export(bundle, place)
    return manifests


def compression_page(
    dataset: str, manifests: Mapping[str, Mapping[str, Any]], settings: Sequence[str], folder: Path
) -> Path:
    """Write compression-<dataset>.md, with the words of the command line that all runs share, and return it."""
    lines = [
        f"# {dataset}, size of the item table",
        "",
        "The ratio is the paper's formula: a table of V x D in float32 to codes of log2(W) bits and codebooks in "
        "float32. The bytes on disk are those of the exported file.",
        "",
        "| row | items | float32 bytes | coded bytes | ratio | the paper | bytes on disk | float32 to disk |",
        "|" + "---|" * 8,
    ]
    for row, manifest in manifests.items():
        table = manifest["item_table"]
        paper = PAPER.get(dataset, {}).get(row)
        cells = [
            *(row, f"{manifest['items']['n_items']:,}", f"{table['float32_bytes']:,.0f}"),
            *(f"{table['formula_bytes']:,.0f}", f"{table['compression_ratio']:.2f}"),
            "not in the paper" if paper is None else f"{paper:.2f}",
            *(f"{table['bytes_on_disk']:,}", f"{table['float32_bytes'] / table['bytes_on_disk']:.2f}"),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    lines += [
        "",
        "```bash",
        " ".join([f"python -m benchmarks paper compression --dataset={dataset}", *settings]),
        "```",
        "",
    ]
    page = folder / f"compression-{dataset}.md"
    write_text(page, "\n".join(lines))
    return page
