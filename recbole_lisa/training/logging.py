"""The log of one run: RecBole's folder and line format, but a file for every run, also within one process.

RecBole's `init_logger` works through `logging.basicConfig`, which does nothing from the second run of a
process on, and names its files by the second.
"""

import contextlib
import logging
import os
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from colorlog import ColoredFormatter
from recbole.config import Config
from recbole.utils.logger import log_colors_config

from recbole_lisa.distributed.processes import from_first, is_first
from recbole_lisa.files import unique_run_name

_COLOR_CODE = re.compile(r"\x1b\[[0-9;]*m")
_LINE = "%(asctime)-15s %(levelname)s  %(message)s"


class _PlainFormatter(logging.Formatter):
    """Drops terminal colours from the finished line; the record stays as it is for other handlers."""

    def format(self, record: logging.LogRecord) -> str:
        return _COLOR_CODE.sub("", super().format(record))


@dataclass(frozen=True)
class RunLog:
    """Names of one run.

    Attributes:
        name: Unique name of the run; its log, TensorBoard folder and checkpoints carry it.
        file: The handler that writes the log file; one that drops everything in all processes but the first.
    """

    name: str
    file: logging.Handler

    @property
    def path(self) -> Path:
        """The log file, absolute; the null device where nothing is logged."""
        return Path(getattr(self.file, "baseFilename", os.devnull))

    def note(self, text: str) -> None:
        """Write to the file alone what the terminal shows by other means."""
        self.file.handle(logging.LogRecord("root", logging.INFO, __file__, 0, text, None, None))


@contextlib.contextmanager
def run_log(config: Config) -> Iterator[RunLog]:
    """Log to the terminal and to `./log/<model>/<run name>.log` as long as the run lasts.

    Handlers that the surrounding program put on the root logger stay in place. Of several processes the first one
    logs, and gives the run its name.

    Args:
        config: `model`, `dataset` and the level `state` (INFO when it is no level).

    Yields:
        The name and the file of the run.
    """
    name = from_first(unique_run_name(config["model"], config["dataset"]))
    if not is_first():
        with _silence() as nowhere:
            yield RunLog(name, nowhere)
        return
    folder = Path("log") / config["model"]
    folder.mkdir(parents=True, exist_ok=True)
    file = logging.FileHandler(folder / f"{name}.log", encoding="utf-8")
    file.setFormatter(_PlainFormatter(_LINE, "%a %d %b %Y %H:%M:%S"))
    terminal = logging.StreamHandler()
    terminal.setFormatter(_terminal_formatter())
    root, log = logging.getLogger(), RunLog(name, file)
    level = root.level
    # In front, because RecBole names the TensorBoard folder after the first log file it finds.
    root.handlers[:0] = [terminal, file]
    root.setLevel(_level(config["state"]))
    try:
        yield log
    except BaseException as error:
        log.note(f"the run stopped: {type(error).__name__}: {error}")
        raise
    finally:
        root.removeHandler(terminal)
        root.removeHandler(file)
        root.setLevel(level)
        file.close()


@contextlib.contextmanager
def _silence() -> Iterator[logging.Handler]:
    """Drop what is logged; without any handler Python would print warnings."""
    root, nowhere = logging.getLogger(), logging.NullHandler()
    root.addHandler(nowhere)
    try:
        yield nowhere
    finally:
        root.removeHandler(nowhere)


def _terminal_formatter() -> logging.Formatter:
    if not sys.stderr.isatty():
        return _PlainFormatter(_LINE, "%d %b %H:%M")
    return ColoredFormatter("%(log_color)s" + _LINE, "%d %b %H:%M", log_colors=log_colors_config)


def _level(state: str | None) -> int:
    level = logging.getLevelName((state or "INFO").upper())
    return level if isinstance(level, int) else logging.INFO
