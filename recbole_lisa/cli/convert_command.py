"""The command `recbole-lisa convert`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from recbole_lisa.cli.arguments import UsageParser
from recbole_lisa.datasets.cells import AUTO_UNIT, TIME_UNITS
from recbole_lisa.datasets.conversion import Reading, convert
from recbole_lisa.datasets.layouts import ANY_TABLE, LAYOUTS, Column, Columns, Layout
from recbole_lisa.errors import UsageError, did_you_mean

FORMATS = (*LAYOUTS, "csv")
_EPILOG = """\
formats:
  ml-100k, ml-1m, ml-25m      MovieLens archives, unpacked or not (ml-25m also reads ml-20m and ml-32m)
  amazon-2018, amazon-2023    Amazon reviews of a category: JSON lines or the ratings-only csv, .gz or not
  csv                         any table with named columns (csv, tsv, parquet, JSON lines; .gz or .zip)

What becomes of what, each counted and told at the end:
  ids             any text is an id and stays as it is (quotes, NA, emoji, blanks, [PAD]); tabs, line breaks and
                  other control characters become escapes such as \\t
  numbers         times in seconds since 1970; csv also finds milli-, micro- and nanoseconds by their size
  dates           ISO 8601; UTC where no zone is named
  empty cells     a row without a user, an item or a time is left out; an empty rating stays empty
  unreadable      a row with another kind of time is left out; another kind of rating becomes empty
  repeated rows   of rows that are equal in every column that is written the first stays (--repeated keep keeps all)
  equal times     keep the order of the file
  line ends, byte-order marks   Windows line ends and marks of utf-8, utf-16 and utf-32 are recognised
  longer lines    a line with more cells than the first stops the conversion, which names it
  same names      of two columns of one name the first counts
  JSON            numbers stay as they are written; NaN counts as empty, a list or an object stops the conversion
"""


def main(words: Sequence[str]) -> int:
    """Convert what the words name and print the counts.

    Args:
        words: The words after `convert`.

    Returns:
        0.

    Raises:
        UsageError: See `reading_from` and `convert`.
    """
    parser = _parser()
    parser.add_argument("input", type=Path, help="the raw file, its .gz or .zip, or the folder of an archive")
    parser.add_argument(
        "--output", type=Path, required=True, metavar="DIR", help="folder of the data set, such as dataset/ml-1m"
    )
    parser.add_argument("--overwrite", action="store_true", help="replace an atomic file that is there")
    options = parser.parse_args(words)
    report = convert(options.input, options.output, _reading(options), overwrite=options.overwrite, show_progress=True)
    print("\n".join(report.lines()))
    return 0


def reading_from(words: Sequence[str]) -> Reading:
    """How to read a raw file, from a format and its options as on the command line.

    Args:
        words: Such as `ml-1m`, or `csv --user=customer --time=date`.

    Raises:
        UsageError: The format is unknown, or an option does not go with it.
    """
    return _reading(_parser().parse_args(words))


def _parser() -> UsageParser:
    parser = UsageParser("recbole-lisa convert", "Write the atomic file of a data set from a raw file.", _EPILOG)
    parser.add_argument("format", help=", ".join(FORMATS))
    table = parser.add_argument_group("of the format csv")
    for role, default in (("user", "user_id"), ("item", "item_id"), ("time", "timestamp"), ("rating", None)):
        table.add_argument(f"--{role}", metavar="COLUMN", help=f"column of the {role} (default: {default})")
    table.add_argument("--no_header", action="store_true", help="columns are numbers from 0")
    table.add_argument("--separator", help="default: the one of , tab ; | :: that finds the columns")
    table.add_argument(
        "--time_unit", choices=[AUTO_UNIT, *TIME_UNITS], help="of times that are numbers (default: auto)"
    )
    parser.add_argument("--encoding", default="utf-8", help="text encoding (default: utf-8)")
    parser.add_argument("--repeated", choices=["drop", "keep"], default="drop", help="rows equal in every column")
    return parser


def _reading(options: argparse.Namespace) -> Reading:
    table = ("user", "item", "time", "rating", "no_header", "separator", "time_unit")
    given = [name for name in table if getattr(options, name)]
    if options.format not in FORMATS:
        hint = did_you_mean(options.format, FORMATS)
        raise UsageError(f"unknown format '{options.format}': known are {', '.join(FORMATS)}.{hint}")
    if options.format == "csv":
        layout = _any_table(options)
    elif given:
        raise UsageError(f"--{given[0]} is an option of the format csv: {options.format} has its columns fixed")
    else:
        layout = LAYOUTS[options.format]
    return Reading(layout, encoding=options.encoding, keeps_repeated=options.repeated == "keep")


def _any_table(options: argparse.Namespace) -> Layout:
    separator = options.separator and options.separator.replace("\\t", "\t")
    is_one = separator is None or (len(separator) == 1 and separator.isascii() and separator not in '"\r\n')
    if not is_one and separator != "::":
        raise UsageError(f"--separator is '{separator}', it must be one ASCII character other than a quote, or ::")
    names = {"user": "user_id", "item": "item_id", "time": "timestamp", "rating": None}
    columns: dict[str, Column | None] = {role: getattr(options, role) or name for role, name in names.items()}
    roles: dict[Column, str] = {}
    for role, column in columns.items():
        other = role if column is None else roles.setdefault(str(column).strip(), role)
        if other != role:
            raise UsageError(f"--{other} and --{role} are both '{column}': each names a column of its own")
    if options.no_header:
        columns = {role: _position(role, column) for role, column in columns.items() if column is not None}
    layout = Layout(ANY_TABLE, Columns(**columns), separator=separator)  # type: ignore[arg-type]
    return replace(layout, header=not options.no_header, time_unit=options.time_unit or AUTO_UNIT)


def _position(role: str, column: Column) -> int:
    if not str(column).isdecimal():
        raise UsageError(f"--{role} is '{column}', with --no_header it must be the number of a column, from 0")
    return int(column)
