"""Raw file formats: where the user, item, time and rating columns are, and how the file is read."""

import shlex
from dataclasses import dataclass, replace

from recbole_lisa.errors import UsageError, did_you_mean

Columns = dict[str, str | int]
"""Role (`user`, `item`, `time`, perhaps `rating`) -> name of its column, or its position in a file without a header."""

AUTO_UNIT = "auto"
TIME_UNITS = {"s": 1.0, "ms": 1e3, "us": 1e6, "ns": 1e9}
"""Name of a time unit -> how many of it make a second."""


@dataclass(frozen=True)
class Layout:
    """How a raw file is read."""

    members: tuple[str, ...]  # patterns of the file's name inside an archive or a folder
    table: Columns  # of a delimited file or of parquet
    lines: Columns | None = None  # keys of a file of JSON lines; None where they equal `table`
    separator: str | None = ","  # of columns; None to find it in the first line
    header: bool = True  # whether the first line names the columns
    quoted: bool = True  # whether a cell in double quotes may hold separators and line breaks
    time_unit: str = "s"  # a key of TIME_UNITS, or auto
    encoding: str = "utf-8"  # of text; a byte-order mark overrides it
    keeps_repeated: bool = False  # whether all rows that are equal in every column stay
    optional: tuple[str, ...] = ()  # roles that may have no column
    numbers: tuple[str, ...] = ()  # roles that are parsed as float64, in delimited text
    advice: str = "The format csv reads tables of your own"  # in the error of a missing column, with {role} in it


COLUMN_OPTION = "Use --{role}"
"""The advice of commands that have an option for the column of each role."""
_TABLES = ("*.csv", "*.tsv", "*.json", "*.jsonl", "*.ndjson", "*.parquet", "*.pq")
_ANY_COLUMNS: Columns = {"user": "user_id", "item": "item_id", "time": "timestamp"}
_MOVIELENS: Columns = {"user": 0, "item": 1, "rating": 2, "time": 3}

LAYOUTS = {
    "ml-100k": Layout(("u.data",), _MOVIELENS, separator="\t", header=False, quoted=False),
    "ml-1m": Layout(("ratings.dat",), _MOVIELENS, separator="::", header=False, quoted=False),
    "ml-25m": Layout(("ratings.csv",), {"user": "userId", "item": "movieId", "rating": "rating", "time": "timestamp"}),
    # The ratings-only files have no header; the item comes first.
    "amazon-2018": Layout(
        _TABLES,
        {"user": 1, "item": 0, "rating": 2, "time": 3},
        {"user": "reviewerID", "item": "asin", "rating": "overall", "time": "unixReviewTime"},
        header=False,
    ),
    # Variants of one product share its parent_asin, which the publisher's own benchmarks count as the item.
    "amazon-2023": Layout(_TABLES, {**_ANY_COLUMNS, "item": "parent_asin", "rating": "rating"}, time_unit="ms"),
}
"""Layouts of public data sets, by the format name of `recbole-lisa convert`."""
FORMATS = (*LAYOUTS, "csv")


def parse_conversion(text: str) -> Layout:
    """Read the key `conversion`: a format and options of `recbole-lisa convert`, such as `csv --user=customer`."""
    name, *options = shlex.split(text)
    return layout_of(name, dict(option.removeprefix("--").partition("=")[::2] for option in options))


def layout_of(name: str, options: dict[str, str]) -> Layout:
    """Find or build the layout of one of `FORMATS`.

    The options are encoding and repeated (drop or keep); for csv also user, item, time, rating, separator, time_unit,
    and no_header (any value).
    """
    if name not in FORMATS:
        known = f"known are {', '.join(FORMATS)} (a csv, tsv, parquet or JSON lines file)"
        raise UsageError(f"unknown format '{name}': {known}.{did_you_mean(name, FORMATS)}")
    of_csv = [key for key in options if key not in ("encoding", "repeated")]
    if name != "csv" and of_csv:
        raise UsageError(f"--{of_csv[0]} is an option of the format csv: {name} has its columns fixed")
    layout = _any_table(options) if name == "csv" else LAYOUTS[name]
    encoding, keeps_repeated = options.get("encoding", "utf-8"), options.get("repeated") == "keep"
    return replace(layout, encoding=encoding, keeps_repeated=keeps_repeated)


def _any_table(options: dict[str, str]) -> Layout:
    separator = options["separator"].replace("\\t", "\t") if "separator" in options else None
    is_character = separator is None or (len(separator) == 1 and separator.isascii() and separator not in '"\r\n')
    if not is_character and separator != "::":
        raise UsageError(f"--separator is '{separator}', it must be one ASCII character other than a quote, or ::")
    columns = {**_ANY_COLUMNS, **{role: options[role] for role in (*_ANY_COLUMNS, "rating") if role in options}}
    for role, column in columns.items():
        other = next(other for other, name in columns.items() if name == column)
        if other != role:
            raise UsageError(f"--{other} and --{role} are both '{column}': give each its own column")
        if "no_header" in options and not str(column).isdecimal():
            raise UsageError(f"--{role} is '{column}', with --no_header it must be the number of a column, from 0")
    time_unit, with_header = options.get("time_unit", AUTO_UNIT), "no_header" not in options
    if not with_header:
        columns = {role: int(column) for role, column in columns.items()}
    return Layout(_TABLES, columns, separator=separator, header=with_header, time_unit=time_unit, advice=COLUMN_OPTION)
