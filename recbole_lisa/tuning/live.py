"""The table of a running search: drawn over itself on a terminal, now and then into a log."""

import math
import shutil
import time
from collections.abc import Callable, Iterable
from typing import TextIO

from recbole_lisa.tuning.record import ENDED, RUNNING, STOPPED, Record, Trial

_MOST_ROWS = 30


class LiveTable:
    """Shows a record at most every so many seconds, and only when it has changed.

    Args:
        stream: Where to.
        epochs: The most epochs of a trial.
        every: Seconds between two tables; None takes 1 on a terminal and 60 elsewhere.
        clock: Seconds that only grow.
    """

    def __init__(
        self, stream: TextIO, epochs: int, *, every: float | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._stream, self._epochs, self._clock = stream, epochs, clock
        self._terminal = stream.isatty()
        self._every = (1.0 if self._terminal else 60.0) if every is None else every
        self._last, self._shown = -math.inf, ""

    def show(self, record: Record, *, now: bool = False) -> None:
        """Write the table if it is time; `now` does not wait."""
        if not now and self._clock() - self._last < self._every:
            return
        rows = live_rows(record.trials.values(), self._epochs)
        if self._terminal:  # a line that wraps could not be drawn over
            width = shutil.get_terminal_size().columns - 1
            rows = [row[:width] for row in rows]
        text = "\n".join(rows)
        if text == self._shown:
            return
        if self._terminal and self._shown:
            self._stream.write(f"\x1b[{self._shown.count(chr(10)) + 1}A\x1b[J")
        self._stream.write(text + ("\n" if self._terminal else "\n\n"))
        self._stream.flush()
        self._last, self._shown = self._clock(), text


def live_rows(trials: Iterable[Trial], epochs: int) -> list[str]:
    """The lines of the table: counts, then a row for every trial that runs or has ended, the newest if there are many.

    Args:
        trials: In order.
        epochs: The most epochs of a trial.
    """
    known = list(trials)
    scored = [trial.score for trial in known if trial.score is not None]
    count = {status: sum(trial.status == status for trial in known) for status in (RUNNING, STOPPED)}
    ended = sum(trial.status in ENDED for trial in known)
    best = f", best {max(scored):.4f}" if scored else ""
    lines = [f"{ended} of {len(known)} trials ended ({count[STOPPED]} early), {count[RUNNING]} running{best}"]
    rows = [trial for trial in known if trial.reports or trial.status != "waiting"]
    lines.append(f"{'trial':>5}  {'status':<8}  {'epoch':>9}  {'now':>7}  {'best':>7}  settings")
    for trial in rows[-_MOST_ROWS:]:
        last = trial.reports[-1] if trial.reports else None
        cells = (f"{last['epoch']}/{epochs}", f"{last['current']:.4f}", f"{last['score']:.4f}") if last else ("-",) * 3
        lines.append(
            f"{trial.number:>5}  {trial.status:<8}  {cells[0]:>9}  {cells[1]:>7}  {cells[2]:>7}  {settings_text(trial)}"
        )
    return lines


def settings_text(trial: Trial) -> str:
    """The settings of a trial in one line."""
    return " ".join(f"{key}={value}" for key, value in trial.settings.items())
