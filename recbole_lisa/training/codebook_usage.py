"""Whether the codebooks of a model in training are used: log lines, curves, a warning and a plot."""

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from logging import getLogger
from typing import Any

from recbole_lisa.errors import UsageError, install_extra
from recbole_lisa.files import atomic_writer

COLLAPSED = 0.1  # a codebook has collapsed when its perplexity is at most this fraction of the largest possible one
_ONE_CODEWORD = 1.05
SAMPLED_WINDOWS = 64  # of the training, whose positions measure the codebooks of layers above the first

Usage = dict[str, dict[str, Any]]
"""Name of a set of codebooks -> n_codewords, used (a list over codebooks), perplexity (likewise)."""


def codebook_usage(model: Any, train_data: Any = None) -> Usage:
    """Used codewords and perplexity of every codebook; empty for a model without codebooks.

    Item codebooks are measured over the items, those of higher layers over some windows of `train_data`, where it can
    `sample` (RecBole's loaders cannot).
    """
    measure = getattr(model, "codebook_usage", None)
    sets = dict(measure()) if measure is not None else {}
    if hasattr(model, "layer_usage") and len(model.encoder.attentions) > 1 and hasattr(train_data, "sample"):
        sample = train_data.sample(SAMPLED_WINDOWS).to(model.item_embedding.weight.device)
        was_training = model.training
        model.eval()
        sets.update(model.layer_usage(sample))
        model.train(was_training)
    return {
        name: {"n_codewords": n, "used": usage.used.tolist(), "perplexity": usage.perplexity.tolist()}
        for name, (n, usage) in sets.items()
    }


def log_line(epoch: int, name: str, usage: Mapping[str, Any]) -> str:
    """One line about a set of codebooks after `epoch` (from 0)."""
    used = f"{' '.join(map(str, usage['used']))} of {usage['n_codewords']}"
    perplexity = " ".join(f"{p:.1f}" for p in usage["perplexity"])
    return f"epoch {epoch + 1} {name} codebooks: used codewords {used}, perplexity {perplexity}"


def collapsed(usage: Mapping[str, Any], n_items: int) -> list[int]:
    """The codebooks (from 0) of a set that hardly distinguish its `n_items` items."""
    most = min(usage["n_codewords"], n_items)
    least = max(COLLAPSED * most, _ONE_CODEWORD)
    return [b for b, perplexity in enumerate(usage["perplexity"]) if most > 1 and perplexity <= least]


def watch_codebooks(trainer: Any, train_data: Any, epoch: int) -> list[str]:
    """Record the codebooks of a `LISATrainer` after an epoch (from 0), warn of collapsed ones; lines for the log."""
    sets = codebook_usage(trainer.model, train_data)
    if not sets:
        return []
    warned = {key for entry in trainer.history for key in entry.get("collapsed", [])}
    names = [f"{name} {b + 1}" for name, usage in sets.items() for b in collapsed(usage, trainer.model.n_items - 1)]
    trainer.history[-1].update(codebooks=sets, collapsed=names)
    for name, usage in sets.items():
        for b, (used, perplexity) in enumerate(zip(usage["used"], usage["perplexity"], strict=True), start=1):
            curve = f"Codebooks/{name.replace(' ', '_')}_{b}"
            trainer.tensorboard.add_scalar(f"{curve}_used", used, epoch)
            trainer.tensorboard.add_scalar(f"{curve}_perplexity", perplexity, epoch)
    if new := [name for name in names if name not in warned]:
        trainer.logger.warning(
            f"epoch {epoch + 1}: collapsed codebooks, where most items share few codewords: {', '.join(new)}; lower "
            "learning_rate, raise codebook_temperature, or use fewer codewords"
        )
    return [log_line(epoch, name, usage) for name, usage in sets.items()]


def log_equal_codes(model: Any) -> None:
    """Log how many items have the codes, and so the score, of another item; models without codes log nothing."""
    count = model.items_with_equal_codes() if hasattr(model, "items_with_equal_codes") else 0
    if count:
        getLogger().info(f"{count:,} of {model.n_items - 1:,} items have the same codes, and score, as another item")


def check_codebook_plot(path: str | None) -> None:
    """Refuse, as a UsageError before hours of training, a plot without matplotlib."""
    if path is not None and find_spec("matplotlib") is None:
        raise UsageError(f"codebook_plot needs matplotlib: {install_extra('bench')}")


def draw_codebooks(history: Sequence[Mapping[str, Any]], path: str, *, overwrite: bool = True) -> None:
    """Draw used codewords and perplexity over the epochs of a trainer's history; warn when there are none."""
    from matplotlib.figure import Figure

    entries = [entry for entry in history if entry.get("codebooks")]
    if not entries:
        getLogger().warning("codebook_plot: the model has no codebooks, nothing is drawn")
        return
    names, epochs = list(entries[0]["codebooks"]), [entry["epoch"] for entry in entries]
    figure = Figure(figsize=(11, 4 * len(names)), layout="constrained")
    for row, name in zip(figure.subplots(len(names), 2, squeeze=False), names, strict=True):
        for ax, measure, title in zip(row, ("used", "perplexity"), ("used codewords", "perplexity"), strict=True):
            for b, values in enumerate(zip(*(entry["codebooks"][name][measure] for entry in entries), strict=True)):
                ax.plot(epochs, values, marker="o", markersize=3, color=f"C{b % 10}", label=f"codebook {b + 1}")
            ax.axhline(entries[0]["codebooks"][name]["n_codewords"], color="grey", linewidth=1, linestyle=":")
            ax.set(title=f"{name}: {title}", xlabel="epoch", ylim=(0, None))
            ax.xaxis.get_major_locator().set_params(integer=True)
        row[-1].legend(fontsize=8, loc="center left", bbox_to_anchor=(1, 0.5))
    with atomic_writer(path, overwrite=overwrite) as stream:
        figure.savefig(stream, format="png", dpi=110)
