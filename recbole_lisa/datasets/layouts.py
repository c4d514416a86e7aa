"""Where users, items, times and ratings stand in the raw files that are known by name."""

from __future__ import annotations

from dataclasses import dataclass

Column = str | int


@dataclass(frozen=True)
class Columns:
    """Names of four columns, or their positions from 0 where a file has no header; no rating is None."""

    user: Column
    item: Column
    time: Column
    rating: Column | None = None

    def by_role(self) -> dict[str, Column]:
        """`user`, `item`, `time` and, where there is one, `rating` -> column."""
        roles = {"user": self.user, "item": self.item, "time": self.time}
        return roles if self.rating is None else {**roles, "rating": self.rating}


@dataclass(frozen=True)
class Layout:
    """How a raw file is laid out.

    Attributes:
        members: Patterns of its name inside an archive or a folder.
        table: Columns of a delimited file or of parquet.
        lines: Keys of a file of JSON lines; None when the format has no such form.
        separator: Column separator; None to find it in the first line.
        header: Whether the first line names the columns.
        quoted: Whether a cell in double quotes may hold separators and line breaks.
        time_unit: A key of `cells.TIME_UNITS`.
    """

    members: tuple[str, ...]
    table: Columns
    lines: Columns | None = None
    separator: str | None = ","
    header: bool = True
    quoted: bool = True
    time_unit: str = "s"


_TEXTS = ("*.csv", "*.tsv", "*.json", "*.jsonl", "*.ndjson")
ANY_TABLE = (*_TEXTS, *(f"{pattern}.gz" for pattern in _TEXTS), "*.parquet", "*.pq")
_AMAZON = ("*.csv", "*.json", "*.jsonl", "*.csv.gz", "*.json.gz", "*.jsonl.gz")

LAYOUTS = {
    "ml-100k": Layout(("u.data",), Columns(0, 1, 3, 2), separator="\t", header=False, quoted=False),
    "ml-1m": Layout(("ratings.dat",), Columns(0, 1, 3, 2), separator="::", header=False, quoted=False),
    "ml-25m": Layout(("ratings.csv",), Columns("userId", "movieId", "timestamp", "rating")),
    # The ratings-only files have no header; the item comes first.
    "amazon-2018": Layout(
        _AMAZON,
        Columns(1, 0, 3, 2),
        lines=Columns("reviewerID", "asin", "unixReviewTime", "overall"),
        header=False,
    ),
    # Variants of one product share its parent_asin, which the publishers' own benchmarks count as the item.
    "amazon-2023": Layout(
        _AMAZON,
        Columns("user_id", "parent_asin", "timestamp", "rating"),
        lines=Columns("user_id", "parent_asin", "timestamp", "rating"),
        time_unit="ms",
    ),
}
"""Raw formats by the name that the conversion command takes."""
