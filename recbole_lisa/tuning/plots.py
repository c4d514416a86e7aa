"""The plot of a search: the validation metric against each setting, and the best value so far."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

_COLUMNS = 3
_LOG_RATIO = 20
_COLOURS = {"finished": "C0", "stopped": "C7", "failed": "C3"}


def draw_search(trials: Sequence[Mapping[str, Any]], valid_metric: str, path: Path) -> None:
    """Draw a PNG file of `results.trial_row` rows; those without a score are left out."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    scored = [trial for trial in trials if trial["score"] is not None]
    numbers, scores = [trial["trial"] for trial in scored], [trial["score"] for trial in scored]
    settings = {key: [trial["settings"][key] for trial in scored] for key in scored[0]["settings"]}
    n_rows = -(-(1 + len(settings)) // _COLUMNS)
    figure = Figure(figsize=(4.2 * _COLUMNS, 3.4 * n_rows), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(n_rows, _COLUMNS, squeeze=False).flatten()
    axes[0].step(numbers, [max(scores[: count + 1]) for count in range(len(scores))], where="post", color="C2")
    for (key, values), ax in zip({"trial": numbers, **settings}.items(), axes, strict=False):
        is_number = all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
        positions = values if is_number else [str(value) for value in values]
        ax.scatter(positions, scores, c=[_COLOURS[trial["status"]] for trial in scored])
        if is_number and min(values) > 0 and max(values) >= _LOG_RATIO * min(values):
            ax.set_xscale("log")
        ax.set(xlabel=key, ylabel=f"{valid_metric}, validation")
        ax.grid(True, alpha=0.3)
    for ax in axes[1 + len(settings) :]:
        ax.remove()
    figure.suptitle("blue: finished, grey: stopped early, red: failed; line: best so far", fontsize=9)
    figure.savefig(path, dpi=110, metadata={"Software": None})
