"""What a run shows while it trains: bars, the lines of an epoch, and the curves of TensorBoard and wandb."""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from logging import getLogger
from typing import Any

import recbole.trainer.trainer as recbole_trainer
from recbole.config import Config
from recbole.utils import set_color

from recbole_lisa.distributed.processes import is_first


def training_line(epoch: int, seconds: float, parts: Sequence[float], names: Sequence[str], decimals: int) -> str:
    """The log line of a training epoch (from 1): seconds, the mean loss, and its parts where it has several."""
    line: str = set_color(f"epoch {epoch} training", "green") + f" [{seconds:.2f} s, loss {sum(parts):.{decimals}f}"
    if len(parts) > 1:
        names = names if len(names) == len(parts) else [f"part {number}" for number in range(1, len(parts) + 1)]
        line += ": " + ", ".join(f"{name} {part:.{decimals}f}" for name, part in zip(names, parts, strict=True))
    return line + "]"


def metric_rows(metrics: Mapping[str, float]) -> str:
    """A table of two rows: the names of metrics and their values."""
    cells = [(name, f"{value:.4f}") for name, value in metrics.items()]
    widths = [max(map(len, cell)) for cell in cells]
    rows = zip(*cells, strict=True)
    return "\n".join("  ".join(f"{text:>{width}}" for text, width in zip(row, widths, strict=True)) for row in rows)


class _Curves:
    """A TensorBoard writer; when it cannot write, it warns once, and the run continues without curves."""

    def __init__(self, make: Callable[[], Any] | None) -> None:
        self._writer: Any = self._try(make) if make else None

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return lambda *args, **options: self._writer and self._try(getattr(self._writer, name), *args, **options)

    def _try(self, call: Callable[..., Any], *args: Any, **options: Any) -> Any:
        try:
            return call(*args, **options)
        except (OSError, UnicodeError) as error:  # the second of a name that the locale cannot read
            path = getattr(error, "filename", None) or "log_tensorboard"
            getLogger().warning(
                f"'{path}' cannot be written: {getattr(error, 'strerror', error)}; the run has no curves"
            )
            self._writer = None


def _hide_writer_thread(args: Any, original: Callable[[Any], Any] = threading.excepthook) -> None:
    """The thread of TensorBoard raises its error in the next call as well; see `_Curves`."""
    if type(args.thread).__name__ != "_AsyncWriterThread":
        original(args)


@contextmanager
def curves_of_first_process(config: Config) -> Iterator[None]:
    """While RecBole's trainer is built: only the first process gets a TensorBoard folder and a run of wandb."""
    config["log_wandb"] = config["log_wandb"] and is_first()
    original, threading.excepthook = recbole_trainer.get_tensorboard, _hide_writer_thread
    recbole_trainer.get_tensorboard = lambda logger: _Curves(partial(original, logger) if is_first() else None)
    try:
        yield
    finally:
        recbole_trainer.get_tensorboard = original
