"""What a run shows: its log, the lines of an epoch, and the curves of TensorBoard and wandb.

The log has RecBole's folder and line format, with a file for every run, also within one process. RecBole's
`init_logger` calls `logging.basicConfig`, which does nothing from the second run of a process on, and names its files
by the second.
"""

import contextlib
import logging
import os
import re
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import recbole.trainer.trainer as recbole_trainer
import torch
from colorlog import ColoredFormatter
from recbole.config import Config
from recbole.utils import set_color
from recbole.utils.logger import log_colors_config

from recbole_lisa.config.query_time import protocol_name, reads_query_time
from recbole_lisa.distributed.processes import from_first, is_first, warn_if_crowded
from recbole_lisa.errors import UsageError
from recbole_lisa.files import unique_run_name

_COLOR_CODE = re.compile(r"\x1b\[[0-9;]*m")
_LINE = "%(asctime)-15s %(levelname)s  %(message)s"


class _PlainFormatter(logging.Formatter):
    """Drops terminal colours from the finished line; the record keeps them for other handlers."""

    def format(self, record: logging.LogRecord) -> str:
        return _COLOR_CODE.sub("", super().format(record))


class _RunFile(logging.FileHandler):
    """A log file; when it cannot be written, it says so once on stderr, and the run continues."""

    failed = False

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - the name is that of logging
        if not self.failed:
            print(f"warning: '{self.baseFilename}' cannot be written: {sys.exc_info()[1]}", file=sys.stderr)
        self.failed = True

    def close(self) -> None:
        """Close the file; lines that still wait for a full disk are lost."""
        with contextlib.suppress(OSError):
            super().close()


@dataclass(frozen=True)
class RunLog:
    """The unique `name` of a run, which its files carry, and the handler of its log file (first process only)."""

    name: str
    file: logging.Handler

    @property
    def path(self) -> Path:
        """The log file, absolute; the null device where nothing is logged."""
        return Path(getattr(self.file, "baseFilename", os.devnull))

    def note(self, text: str) -> None:
        """Write to the file alone."""
        self.file.handle(logging.LogRecord("root", logging.INFO, __file__, 0, text, None, None))


@contextlib.contextmanager
def run_log(config: Config) -> Iterator[RunLog]:
    """Log to the terminal and to `./log/<model>/<run name>.log` as long as the run lasts, at the level `state`.

    Other handlers of the root logger stay in place. Of several processes the first one logs, and names the run. A
    UsageError where the file cannot be made.
    """
    name = from_first(unique_run_name(config["model"], config["dataset"]))
    root = logging.getLogger()
    if is_first():
        folder = Path("log") / config["model"]
        try:
            folder.mkdir(parents=True, exist_ok=True)
            file: logging.Handler = _RunFile(folder / f"{name}.log", encoding="utf-8", errors="backslashreplace")
        except OSError as error:
            raise UsageError(
                f"'{folder.absolute()}' cannot be written ({error.strerror}): a run writes log and log_tensorboard "
                "into the folder that it is started from; start it from another one"
            ) from error
        file.setFormatter(_PlainFormatter(_LINE, "%a %d %b %Y %H:%M:%S"))
        terminal = logging.StreamHandler()
        color = ColoredFormatter("%(log_color)s" + _LINE, "%d %b %H:%M", log_colors=log_colors_config)
        terminal.setFormatter(color if sys.stderr.isatty() else _PlainFormatter(_LINE, "%d %b %H:%M"))
        handlers = [terminal, file]
    else:  # without any handler Python would print warnings
        file = logging.NullHandler()
        handlers = [file]
    log, level = RunLog(name, file), root.level
    # In front, because RecBole names the TensorBoard folder after the first log file in this list.
    root.handlers[:0] = handlers
    root.setLevel((config["state"] or "INFO").upper() if is_first() else level)
    try:
        yield log
    except BaseException as error:
        log.note(f"the run stopped: {type(error).__name__}: {error}")
        raise
    finally:
        for handler in handlers:
            root.removeHandler(handler)
        root.setLevel(level)
        file.close()


def log_settings(config: Any, notes: Iterable[str], log: RunLog) -> None:
    """Log `notes`, the device and the settings that differ from the defaults; the file gets all settings."""
    device = config["device"]
    place = torch.cuda.get_device_name(device) if device.type == "cuda" else f"CPU, threads: {torch.get_num_threads()}"
    defaults, given = config.internal_config_dict, config.external_config_dict
    changed = [f"{key}: {value}" for key, value in given.items() if defaults.get(key) != value]
    run = f"{config['model']} on {config['dataset']}, protocol {protocol_name(config)} ({place})"
    if reads_query_time(config):
        run += "; the time of each target is read, in validation and test as well"
    for line in (*notes, run, f"settings other than the defaults: {', '.join(changed) or 'none'}"):
        logging.getLogger().info(line)
    warn_if_crowded(device.type)
    log.note(str(config))


def training_line(epoch: int, seconds: float, parts: Sequence[float], names: Sequence[str], decimals: int) -> str:
    """The log line of a training epoch (from 1): seconds, the mean loss, and its parts where it has several."""
    line: str = set_color(f"epoch {epoch} training", "green") + f" [{seconds:.2f} s, loss {sum(parts):.{decimals}f}"
    if len(parts) > 1:
        names = names if len(names) == len(parts) else [f"part {number}" for number in range(1, len(parts) + 1)]
        line += ": " + ", ".join(f"{name} {part:.{decimals}f}" for name, part in zip(names, parts, strict=True))
    return line + "]"


def metric_text(value: float, config: Mapping[str, Any]) -> str:
    """A metric with `metric_decimal_place` decimal places, but at least four."""
    return f"{value:.{max(4, config['metric_decimal_place'] or 0)}f}"


def metric_rows(metrics: Mapping[str, float], config: Mapping[str, Any]) -> str:
    """A table of two rows: the names of metrics and their values."""
    cells = [(name, metric_text(value, config)) for name, value in metrics.items()]
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
            logging.getLogger().warning(
                f"'{path}' cannot be written: {getattr(error, 'strerror', error)}; the run has no curves"
            )
            self._writer = None


def _hide_writer_thread(args: Any, original: Callable[[Any], Any] = threading.excepthook) -> None:
    """The thread of TensorBoard raises its error in the next call as well; see `_Curves`."""
    if type(args.thread).__name__ != "_AsyncWriterThread":
        original(args)


@contextlib.contextmanager
def curves_of_first_process(config: Config) -> Iterator[None]:
    """While RecBole's trainer is built: only the first process gets a TensorBoard folder and a run of wandb."""
    config["log_wandb"] = config["log_wandb"] and is_first()
    original, threading.excepthook = recbole_trainer.get_tensorboard, _hide_writer_thread
    recbole_trainer.get_tensorboard = lambda logger: _Curves(partial(original, logger) if is_first() else None)
    try:
        yield
    finally:
        recbole_trainer.get_tensorboard = original
