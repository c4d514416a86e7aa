"""The pictures of docs/lisa.md: `python docs/figures/lisa.py`.

Eight items in two dimensions, two codebooks of four codewords, one history. The numbers of the last picture are
compared with `recbole_lisa.ops.lisa_attention`.
"""

from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import torch
from matplotlib import pyplot as plt

from recbole_lisa.ops import lisa_attention

FOLDER = Path(__file__).parent
COLOURS = ["#1b6ca8", "#d95f02", "#2a9d5c", "#8e44ad"]
ITEMS = dict(zip("ABCDEFGH", np.array([
    [1.9, 1.7], [2.5, 1.2], [-1.6, 2.1], [-2.4, 1.3], [-1.9, -1.5], [-2.2, -2.2], [1.6, -1.9], [2.4, -1.4],
]), strict=True))  # fmt: skip
FIRST = np.array([[2.2, 1.4], [-2.0, 1.7], [-2.0, -1.9], [2.0, -1.6]])
SECOND = np.array([[0.4, -0.3], [-0.4, 0.3], [0.3, 0.4], [-0.3, -0.4]])
HISTORY = "ACBEDAHB"
MARKERS = "sD^o"
STYLE = {
    "font.size": 12, "axes.spines.top": False, "axes.spines.right": False, "figure.dpi": 130, "savefig.dpi": 130,
    "svg.hashsalt": "recbole-lisa",
}  # fmt: skip


def nearest(x: Any, codewords: Any) -> int:
    """The number of the codeword with the smallest distance."""
    return int(np.argmin(((codewords - x) ** 2).sum(axis=1)))


def codes() -> dict[str, tuple[int, int]]:
    """The codes of each item: the codeword of the item, then the one of what is left of it."""
    first = {name: nearest(x, FIRST) for name, x in ITEMS.items()}
    return {name: (code, nearest(ITEMS[name] - FIRST[code], SECOND)) for name, code in first.items()}


def save(figure: Any, name: str) -> None:
    """Write docs/figures/NAME.png."""
    figure.savefig(FOLDER / f"{name}.png", bbox_inches="tight", facecolor="white", metadata={"Software": None})
    plt.close(figure)


def draw_codewords() -> None:
    """Items, their nearest codewords in both codebooks, and the table of codes."""
    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(14, 4.8), gridspec_kw={"width_ratios": [5, 5, 3.4]})
    panels = (
        (left, ITEMS, FIRST, 0, "codebook 1 encodes the items"),
        (middle, {name: x - FIRST[codes()[name][0]] for name, x in ITEMS.items()}, SECOND, 1,
         "codebook 2 encodes what is left"),
    )  # fmt: skip
    for axes, points, codewords, number, title in panels:
        scale = np.abs(codewords).max()
        for name, x in points.items():
            code = codes()[name][number]
            axes.plot(*zip(x, codewords[code], strict=True), color=COLOURS[code], linewidth=1, zorder=1)
            axes.plot(*x, "o", color="white", markeredgecolor=COLOURS[code], markersize=17, zorder=2)
            axes.text(*x, name, ha="center", va="center_baseline", zorder=3)
        for code, place in enumerate(codewords):
            axes.plot(*place, MARKERS[code], color=COLOURS[code], markersize=12, zorder=4)
            label = place + [0, np.sign(place[1]) * 0.42 * scale]
            axes.text(*label, f"codeword {code}", color=COLOURS[code], ha="center", va="center")
        axes.set_title(title)
        axes.set_xlim(-1.75 * scale, 1.75 * scale)
        axes.set_ylim(-1.65 * scale, 1.65 * scale)
        axes.set_xticks([])
        axes.set_yticks([])
        axes.spines[["top", "right"]].set_visible(True)
        axes.spines[:].set_color("#cccccc")
    middle.set_xlabel(f"enlarged {np.abs(FIRST).max() / np.abs(SECOND).max():.1f} times")
    right.axis("off")
    right.set_title("what is stored: 2 codes an item")
    rows = [[name, *map(str, item_codes)] for name, item_codes in codes().items()]
    table = right.table(rows, colLabels=["item", "code 1", "code 2"], loc="center", cellLoc="center")
    table.scale(1, 1.75)
    table.auto_set_font_size(False)
    table.set_fontsize(12)
    for (row, column), cell in table.get_celld().items():
        cell.set_edgecolor("#cccccc")
        if row and column:
            cell.get_text().set_color(COLOURS[int(cell.get_text().get_text())])
            cell.get_text().set_weight("bold")
    figure.tight_layout()
    save(figure, "codewords")


def histograms(decay: float) -> Any:
    """F_i = exp(-decay) F_{i-1} + E_i of codebook 1, (W, L)."""
    steps, current = [], np.zeros(len(FIRST))
    for item in HISTORY:
        current = np.exp(-decay) * current + np.eye(len(FIRST))[codes()[item][0]]
        steps.append(current)
    return np.array(steps).T


def frame(axes: Any, cell: tuple[int, int], width: int, colour: str) -> None:
    """Draw a frame around cells of a row."""
    corner = (cell[0] - 0.48, cell[1] - 0.48)
    axes.add_patch(mpl.patches.Rectangle(corner, width - 0.04, 0.96, fill=False, edgecolor=colour, linewidth=2.5))


def draw_histogram() -> None:
    """The histogram of codebook 1 after each item, without and with decay."""
    figure, panels = plt.subplots(1, 2, figsize=(14, 3.9), sharey=True)
    for axes, decay in zip(panels, (0.0, 0.3), strict=True):
        table = histograms(decay)
        axes.imshow(table, cmap="Greys", vmin=0, vmax=4.5, aspect="auto")
        for w, i in np.ndindex(*table.shape):
            new = codes()[HISTORY[i]][0] == w
            text = f"{table[w, i]:.1f}" if decay else f"{table[w, i]:.0f}"
            ink = "white" if table[w, i] > 2.4 else COLOURS[w] if new else "black"
            axes.text(i, w, text, ha="center", va="center", color=ink, weight="bold" if new else None)
            if new:
                frame(axes, (i, w), 1, COLOURS[w])
        axes.set_xticks(range(len(HISTORY)), [f"{item}\ncode {codes()[item][0]}" for item in HISTORY])
        axes.set_yticks(range(len(FIRST)), [f"codeword {w}" for w in range(len(FIRST))])
        axes.set_title(f"decay {decay:g}: " + ("the past fades" if decay else "a count, as in the paper"))
        axes.set_xlabel("items of the history, oldest first")
        axes.spines[:].set_visible(False)
        axes.tick_params(length=0)
    figure.tight_layout()
    save(figure, "histogram")


def draw_look_up() -> None:
    """Weights of the codewords from one row of the table and one histogram, and the same from all earlier items."""
    item_codes = [codes()[item][0] for item in HISTORY]
    table, query, count = FIRST @ FIRST.T / 8, item_codes[-1], histograms(0.0)[:, -1]
    weight = np.exp(table[query]) * count
    weight /= weight.sum()
    by_item = np.exp(table[query][item_codes])
    by_item /= by_item.sum()
    sums_of_items = np.bincount(item_codes, by_item, 4)
    ours = lisa_attention(
        torch.tensor(item_codes).view(1, -1, 1), torch.tensor(table[None]), torch.eye(4)[None].double()
    )
    assert np.allclose(ours[0, -1], weight) and np.allclose(sums_of_items, weight)

    figure, panels = plt.subplots(2, 3, figsize=(14, 7.4))
    (scores, row, counts), (result, items, sums) = panels
    scores.imshow(table, cmap="Greys", vmin=-1.3, vmax=1.6)
    for i, j in np.ndindex(4, 4):
        scores.text(
            j, i, f"{table[i, j]:.2f}", ha="center", va="center", color="white" if table[i, j] > 0.6 else "black"
        )
    frame(scores, (0, query), 4, COLOURS[query])
    scores.set(xticks=range(4), yticks=range(4), xlabel="codeword of a key", ylabel="codeword of the query")
    scores.set_title(f"1. table T, once a batch;\nthe query B has code {query}: one row")
    scores.tick_params(length=0)
    bars(row, np.exp(table[query]), "2. exp(T[q, w])", "codeword w", range(4))
    bars(counts, count, "3. times the histogram F[w]", "codeword w", range(4))
    bars(result, weight, "4. divided by the sum:\nweights of 4 codewords", "codeword w", range(4))
    bars(items, by_item, "for comparison: softmax attention\nover the 8 quantised items", "items", item_codes, HISTORY)
    bars(sums, sums_of_items, "its sums for each codeword\nare the weights of step 4", "codeword w", range(4))
    figure.tight_layout(h_pad=2.0, w_pad=2.0)
    save(figure, "look-up")


def bars(axes: Any, heights: Any, title: str, label: str, colours: Any, names: str = "0123") -> None:
    """One panel of bars with their values."""
    axes.bar(range(len(heights)), heights, color=[COLOURS[code] for code in colours], width=0.7)
    for place, height in enumerate(heights):
        axes.text(place, height, f" {height:.2f}".rstrip("0").rstrip("."), ha="center", va="bottom")
    axes.set_xticks(range(len(heights)), list(names))
    axes.set_ylim(0, max(heights) * 1.18)
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    axes.set_title(title)
    axes.set_xlabel(label)


def main() -> None:
    """Draw all pictures."""
    mpl.use("Agg")
    with plt.rc_context(STYLE):
        draw_codewords()
        draw_histogram()
        draw_look_up()


if __name__ == "__main__":
    main()
