"""Whether the codebooks of a model in training are in use: log lines, curves, a warning and a plot."""

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from recbole_lisa.errors import UsageError
from recbole_lisa.files import atomic_writer
from recbole_lisa.ops.codeword_usage import CodewordUsage

COLLAPSED_SHARE = 0.1
"""A codebook has collapsed when its perplexity is at most this share of what it could be."""
_ONE_CODEWORD = 1.05
SAMPLED_WINDOWS = 64
"""Training windows whose positions tell how a layer above the first uses its codebooks."""

Usage = dict[str, dict[str, Any]]
"""Name of a set of codebooks -> n_codewords, used (a list over codebooks), perplexity (likewise)."""


def codebook_usage(model: torch.nn.Module) -> Usage:
    """Used codewords and perplexity of every codebook over the items; empty for a model without codebooks."""
    measure = getattr(model, "codebook_usage", None)
    return _plain(measure()) if measure is not None else {}


def layer_usage(model: Any, train_data: Any) -> Usage:
    """The same of layers that quantise their own input, over the positions of some training windows.

    Args:
        model: In any mode.
        train_data: Its loader; one that gives no samples, as of another package, has nothing measured.
    """
    if not getattr(model, "quantizing_layers", ()) or not hasattr(train_data, "sample"):
        return {}
    sample = train_data.sample(SAMPLED_WINDOWS).to(model.item_embedding.weight.device)
    was_training = model.training
    model.eval()
    usage = _plain(model.layer_usage(sample))
    model.train(was_training)
    return usage


def _plain(sets: Mapping[str, tuple[int, CodewordUsage]]) -> Usage:
    return {
        name: {"n_codewords": n, "used": usage.used.tolist(), "perplexity": usage.perplexity.tolist()}
        for name, (n, usage) in sets.items()
    }


def log_line(epoch: int, name: str, usage: Mapping[str, Any]) -> str:
    """One line about a set of codebooks after `epoch` (from 0)."""
    used = " ".join(str(n) for n in usage["used"])
    perplexity = " ".join(f"{p:.1f}" for p in usage["perplexity"])
    return (
        f"epoch {epoch + 1} {name} codebooks: used codewords {used} of {usage['n_codewords']}, perplexity {perplexity}"
    )


def collapsed(usage: Mapping[str, Any], n_items: int) -> list[int]:
    """The codebooks (from 0) that hardly tell items apart.

    Args:
        usage: Of one set.
        n_items: Items that were quantised.
    """
    most = min(usage["n_codewords"], n_items)
    if most < 2:
        return []
    least = max(COLLAPSED_SHARE * most, _ONE_CODEWORD)
    return [b for b, perplexity in enumerate(usage["perplexity"]) if perplexity <= least]


def watch_codebooks(trainer: Any, train_data: Any, epoch: int) -> list[str]:
    """Measure the codebooks after an epoch and record them in the history and for TensorBoard.

    A collapsed codebook is warned of once a run.

    Args:
        trainer: A `LISATrainer` whose history ends in this epoch.
        train_data: Its training batches.
        epoch: From 0.

    Returns:
        Lines for the log.
    """
    sets = codebook_usage(trainer.model) | layer_usage(trainer.model, train_data)
    if not sets:
        return []
    warned = {key for entry in trainer.history for key in entry.get("collapsed", [])}
    found = [f"{name} {b + 1}" for name, usage in sets.items() for b in collapsed(usage, trainer.model.n_items - 1)]
    trainer.history[-1].update(codebooks=sets, collapsed=found)
    for name, usage in sets.items():
        for b, (used, perplexity) in enumerate(zip(usage["used"], usage["perplexity"], strict=True), start=1):
            curve = f"Codebooks/{name.replace(' ', '_')}_{b}"
            trainer.tensorboard.add_scalar(f"{curve}_used", used, epoch)
            trainer.tensorboard.add_scalar(f"{curve}_perplexity", perplexity, epoch)
    new = [name for name in found if name not in warned]
    if new:
        trainer.logger.warning(
            f"epoch {epoch + 1}: codebook {', '.join(new)} has collapsed, most items share a few codewords: lower "
            "learning_rate, raise codebook_temperature, or use fewer codewords"
        )
    return [log_line(epoch, name, usage) for name, usage in sets.items()]


def check_codebook_plot(path: str | None) -> None:
    """Refuse a plot that cannot be drawn, before hours of training.

    Raises:
        UsageError: The file is no .png, or matplotlib is missing.
    """
    if path is None:
        return
    if Path(path).suffix != ".png":
        raise UsageError(f"codebook_plot is {path!r}, it must end in .png")
    if find_spec("matplotlib") is None:
        raise UsageError("codebook_plot needs matplotlib: pip install 'recbole-lisa[bench]'")


def draw_codebooks(history: Sequence[Mapping[str, Any]], path: str) -> bool:
    """Draw used codewords and perplexity of every codebook over the epochs.

    Args:
        history: A trainer's.
        path: A .png file; its folder is made, and the file is complete or not there.

    Returns:
        False when no epoch has codebooks, and nothing is drawn.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    entries = [entry for entry in history if entry.get("codebooks")]
    if not entries:
        return False
    names, epochs = list(entries[0]["codebooks"]), [entry["epoch"] for entry in entries]
    canvas = Figure(figsize=(11, 4 * len(names)), layout="constrained")
    FigureCanvasAgg(canvas)
    for row, name in zip(canvas.subplots(len(names), 2, squeeze=False), names, strict=True):
        for ax, measure, title in zip(row, ("used", "perplexity"), ("used codewords", "perplexity"), strict=True):
            for b, values in enumerate(zip(*(entry["codebooks"][name][measure] for entry in entries), strict=True)):
                ax.plot(epochs, values, marker="o", markersize=3, color=f"C{b % 10}", label=f"codebook {b + 1}")
            ax.axhline(entries[0]["codebooks"][name]["n_codewords"], color="grey", linewidth=1, linestyle=":")
            ax.set(title=f"{name}: {title}", xlabel="epoch", ylim=(0, None))
            ax.xaxis.get_major_locator().set_params(integer=True)
        row[-1].legend(fontsize=8, loc="center left", bbox_to_anchor=(1, 0.5))
    with atomic_writer(path) as stream:
        canvas.savefig(stream, format="png", dpi=110)
    return True
