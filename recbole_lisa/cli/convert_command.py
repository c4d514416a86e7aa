"""The command `recbole-lisa convert`."""

from collections.abc import Sequence
from pathlib import Path

from recbole_lisa.cli.arguments import UsageParser
from recbole_lisa.datasets.conversion import convert
from recbole_lisa.datasets.layouts import AUTO_UNIT, FORMATS, TIME_UNITS, layout_of

_EPILOG = """\
formats:
  ml-100k, ml-1m, ml-25m      MovieLens archives, unpacked or not (ml-25m also reads ml-20m and ml-32m)
  amazon-2018, amazon-2023    Amazon reviews of a category: JSON lines or the ratings-only csv, .gz or not
  csv                         any table with named columns (csv, tsv, parquet, JSON lines; .gz or .zip)

How cells are read; each case is counted and printed at the end:
  ids             any text is an id and stays as it is (quotes, NA, emoji, blanks, [PAD]); tabs, line breaks and
                  other control characters become escapes such as \\t; a note says which ids end in a blank, or are 1.0
  numbers         times in seconds since 1970; csv also finds milli-, micro- and nanoseconds by their size
  dates           ISO 8601; UTC where no zone is named
  empty cells     a row without a user, an item or a time is left out; an empty rating stays empty
  unreadable      a row with another kind of time is left out; another kind of rating becomes empty
  repeated rows   of rows that are equal in every written column the first stays (--repeated keep keeps all)
  equal times     keep the order of the file
  line ends, byte-order marks   Windows line ends and marks of utf-8, utf-16 and utf-32 are recognised
  longer lines    a line with more cells than the first stops the conversion, which names it
  same names      of two columns of one name the first counts
  JSON            numbers stay as they are written; NaN counts as empty, a list or an object stops the conversion
"""


def main(arguments: Sequence[str]) -> int:
    """Convert a raw file and print the counts, with the arguments after `convert`; return 0."""
    parser = UsageParser("recbole-lisa convert", "Write the atomic file of a data set from a raw file.", _EPILOG)
    add = parser.add_argument
    add("format", help=", ".join(FORMATS))
    add("input", type=Path, help="the raw file, its .gz or .zip, or the folder of an archive")
    add("--output", type=Path, required=True, metavar="DIR", help="folder of the data set, such as dataset/ml-1m")
    add("--overwrite", action="store_true", help="replace an existing atomic file")
    add("--encoding", default="utf-8", help="text encoding (default: utf-8)")
    add("--repeated", choices=["drop", "keep"], default="drop", help="rows equal in every column")
    table = parser.add_argument_group("options of the format csv")
    for role, default in (("user", "user_id"), ("item", "item_id"), ("time", "timestamp"), ("rating", "none")):
        table.add_argument(f"--{role}", metavar="COLUMN", help=f"column of the {role} (default: {default})")
    table.add_argument("--no_header", action="store_true", help="columns are numbers from 0")
    table.add_argument("--separator", help="default: the one of , tab ; | :: that finds the columns")
    table.add_argument("--time_unit", choices=[AUTO_UNIT, *TIME_UNITS], help="of times in numbers (default: auto)")
    options = vars(parser.parse_args(arguments))
    source, output, overwrite = (options.pop(name) for name in ("input", "output", "overwrite"))
    given = {name: value for name, value in options.items() if value not in (None, False)}
    layout = layout_of(given.pop("format"), given)
    report = convert(source, output, layout, overwrite=overwrite, show_progress=True)
    print("\n".join(report.lines()))
    return 0
