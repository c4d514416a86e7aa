"""The plot of a search: the validation metric against every setting, and the best so far."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

_COLUMNS = 3
_LOG_RATIO = 20
_MARKERS = {"finished": ("o", "C0"), "stopped": ("x", "C7")}


def draw_search(trials: Sequence[Mapping[str, Any]], valid_metric: str, path: Path) -> None:
    """Draw a PNG file.

    Args:
        trials: Of `results.describe`; those without a score are left out.
        valid_metric: What the trials are compared by.
        path: The file.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    scored = [trial for trial in trials if trial["score"] is not None]
    keys = list(scored[0]["settings"])
    n_rows = -(-(len(keys) + 1) // _COLUMNS)
    canvas = Figure(figsize=(4.2 * _COLUMNS, 3.4 * n_rows), layout="constrained")
    FigureCanvasAgg(canvas)
    axes = canvas.subplots(n_rows, _COLUMNS, squeeze=False).flatten()
    _draw_best_so_far(axes[0], scored)
    for key, ax in zip(keys, axes[1:], strict=False):
        _draw_setting(ax, scored, key)
    for ax in axes[: len(keys) + 1]:
        ax.set_ylabel(f"{valid_metric}, validation")
        ax.grid(True, alpha=0.3)
    for ax in axes[len(keys) + 1 :]:
        ax.remove()
    canvas.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=4, fontsize=8)
    canvas.savefig(path, dpi=110, metadata={"Software": None})


def _draw_best_so_far(ax: Any, trials: Sequence[Mapping[str, Any]]) -> None:
    numbers = [trial["trial"] for trial in trials]
    best = [max(trial["score"] for trial in trials[: count + 1]) for count in range(len(trials))]
    ax.step(numbers, best, where="post", color="C2", label="best so far")
    _scatter(ax, trials, numbers)
    ax.set(xlabel="trial", title="best so far")


def _draw_setting(ax: Any, trials: Sequence[Mapping[str, Any]], key: str) -> None:
    positions, names = axis_of([trial["settings"][key] for trial in trials])
    _scatter(ax, trials, positions)
    ax.set(xlabel=key, title=key)
    if names:
        ax.set_xticks(range(len(names)), labels=names, rotation=30)
    elif min(positions) > 0 and max(positions) >= _LOG_RATIO * min(positions):
        ax.set_xscale("log")


def axis_of(values: Sequence[Any]) -> tuple[list[float], list[str]]:
    """Where to draw values, and the names of the places when they are no numbers.

    Args:
        values: One a trial.

    Returns:
        Their positions, and names of the positions 0, 1, ... or nothing for a number axis.
    """
    if all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
        return [float(value) for value in values], []
    texts = [value if isinstance(value, str) else json.dumps(value) for value in values]
    names = sorted(set(texts))
    return [float(names.index(text)) for text in texts], names


def _scatter(ax: Any, trials: Sequence[Mapping[str, Any]], positions: Sequence[float]) -> None:
    for status in dict.fromkeys(trial["status"] for trial in trials):
        marker, colour = _MARKERS.get(status, ("+", "C3"))
        chosen = [(x, trial["score"]) for x, trial in zip(positions, trials, strict=True) if trial["status"] == status]
        ax.plot(*zip(*chosen, strict=True), marker, color=colour, label=status)
    if trials[0]["trial"] == 0:
        ax.plot(positions[0], trials[0]["score"], "*", color="C1", markersize=12, fillstyle="none", label="default")
