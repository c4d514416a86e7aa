"""What a conversion did, in numbers: for the terminal, the log of a run and the tests."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

_LEFT_OUT = {
    "no user": "without a user",
    "no item": "without an item",
    "no time": "without a time",
    "odd time": "with a time that is neither a number nor an ISO date",
    "repeated": "equal to an earlier row in every column",
}
_NOTES = {
    "ms": "times in milliseconds, written as seconds",
    "us": "times in microseconds, written as seconds",
    "ns": "times in nanoseconds, written as seconds",
    "iso": "times as dates, written as seconds since 1970 (UTC where no zone is named)",
    "odd rating": "ratings that are no number, left empty",
    "bom": "byte-order mark, skipped",
    "crlf": "file with Windows line ends, read like any other",
    "escaped": "ids with tabs, line breaks or other control characters, written as escapes such as \\t",
    "missing": "ids such as NA or null, kept; RecBole's own loader would drop them as missing",
    "padding": "id spelled [PAD], kept apart from the padding",
}


@dataclass
class ConversionReport:
    """Counts of one conversion.

    Attributes:
        name: Name of the raw file.
        rows: Rows read and rows written.
        users: Distinct users read and written.
        items: Distinct items read and written.
        left_out: Rows left out, by reason.
        notes: What else was met, by kind.
        target: The atomic file.
    """

    name: str
    target: Path
    rows: tuple[int, int] = (0, 0)
    users: tuple[int, int] = (0, 0)
    items: tuple[int, int] = (0, 0)
    left_out: Counter[str] = field(default_factory=Counter)
    notes: Counter[str] = field(default_factory=Counter)

    def lines(self) -> list[str]:
        """The report as text, a line for each count that is not 0."""
        return [
            f"read {self.name}: {self.rows[0]:,} rows, {self.users[0]:,} users, {self.items[0]:,} items",
            *(f"left out {self.left_out[key]:,} rows {text}" for key, text in _LEFT_OUT.items() if self.left_out[key]),
            *(f"noted {self.notes[key]:,} {text}" for key, text in _NOTES.items() if self.notes[key]),
            f"wrote {self.target}: {self.rows[1]:,} rows, {self.users[1]:,} users, {self.items[1]:,} items",
        ]
