"""The plot of a search: the validation metric against each setting, and the best value so far."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

_COLUMNS = 3
_LOG_RATIO = 20
_MARKERS = {"finished": ("o", "C0"), "stopped": ("x", "C7"), "failed": ("+", "C3")}


def draw_search(trials: Sequence[Mapping[str, Any]], valid_metric: str, path: Path) -> None:
    """Draw a PNG file of `results.trial_row` rows; those without a score are left out."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    scored = [trial for trial in trials if trial["score"] is not None]
    keys = ["trial", *scored[0]["settings"]]
    n_rows = -(-len(keys) // _COLUMNS)
    figure = Figure(figsize=(4.2 * _COLUMNS, 3.4 * n_rows), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(n_rows, _COLUMNS, squeeze=False).flatten()
    best = [max(trial["score"] for trial in scored[: count + 1]) for count in range(len(scored))]
    axes[0].step([trial["trial"] for trial in scored], best, where="post", color="C2", label="best so far")
    for key, ax in zip(keys, axes, strict=False):
        positions, names = axis_of([trial["trial"] if key == "trial" else trial["settings"][key] for trial in scored])
        for status, (marker, colour) in _MARKERS.items():
            chosen = [index for index, trial in enumerate(scored) if trial["status"] == status]
            scores = [scored[index]["score"] for index in chosen]
            ax.plot([positions[index] for index in chosen], scores, marker, color=colour, label=status)
        ax.set(xlabel=key, ylabel=f"{valid_metric}, validation")
        ax.grid(True, alpha=0.3)
        if names:
            ax.set_xticks(range(len(names)), labels=names, rotation=30)
        elif min(positions) > 0 and max(positions) >= _LOG_RATIO * min(positions):
            ax.set_xscale("log")
    for ax in axes[len(keys) :]:
        ax.remove()
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=4, fontsize=8)
    figure.savefig(path, dpi=110, metadata={"Software": None})


def axis_of(values: Sequence[Any]) -> tuple[list[float], list[str]]:
    """Positions of values on an axis, and the names of the positions 0, 1, ... where the values are no numbers."""
    if all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
        return [float(value) for value in values], []
    texts = [value if isinstance(value, str) else json.dumps(value) for value in values]
    names = sorted(set(texts))
    return [float(names.index(text)) for text in texts], names
