"""The command `recbole-lisa add-items`."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from recbole_lisa.cli.arguments import UsageParser
from recbole_lisa.cli.export_command import report
from recbole_lisa.datasets.histories import read_user_histories
from recbole_lisa.errors import UsageError, check_header
from recbole_lisa.progress import progress_bar
from recbole_lisa.serving.export import check_export_folder, read_export, write_export
from recbole_lisa.serving.new_items import add_items, neighbours_by_vectors, neighbours_in_histories
from recbole_lisa.serving.tables import SEPARATORS

_EPILOG = """\
The model is not trained: new items get codes (or vectors), and the scores of the old items stay. Give one of

  --input FILE    interactions as for recommend (user_id, item_id, timestamp). Ids that the model does not know are
                  new items. A new item becomes the mean of the items at most 5 places before or after it,
                  scaled to the mean length of their vectors.
  --vectors FILE  .csv or .tsv with the column item_id and one column a number, for old and new items, in any space,
                  such as embeddings of titles. A new item becomes the scaled mean of the 10 most similar
                  old items.
"""


def main(arguments: Sequence[str]) -> int:
    """Add items to an export and print what was added, with the arguments after `add-items`; return 0."""
    parser = UsageParser("recbole-lisa add-items", "Add items to an export without training.", _EPILOG)
    add = parser.add_argument
    add("--export", type=Path, required=True, metavar="DIR", help="folder of recbole-lisa export")
    add("--output", type=Path, required=True, metavar="DIR", help="folder of the new export")
    add("--input", type=Path, metavar="FILE", help="interactions of old and new items")
    add("--vectors", type=Path, metavar="FILE", help="vectors of old and new items")
    add("--overwrite", action="store_true", help="replace an export in the folder")
    options = parser.parse_args(arguments)
    if (options.input is None) == (options.vectors is None):
        raise UsageError("give one of --input FILE and --vectors FILE")
    check_export_folder(options.output, overwrite=options.overwrite, source=options.export)
    bundle, _ = read_export(options.export)
    if options.vectors is None:
        users = read_user_histories(options.input, user="user_id", item="item_id")
        histories = (user.items for user in progress_bar(users, "neighbours", unit=" users"))
        near = neighbours_in_histories(bundle, histories)
    else:
        near = neighbours_by_vectors(bundle, *_read_vectors(options.vectors))
    usable = {item: numbers for item, numbers in near.items() if len(numbers)}
    if not usable:
        lack = f"'{options.input or options.vectors}' has no new item"
        if near:
            lack = f"none of the {len(near)} new items of '{options.input or options.vectors}' has an old item near it"
        raise UsageError(f"{lack}: give old and new items together")
    left_out = len(near) - len(usable)
    print(f"added: {len(usable):,} items to {len(bundle.ids):,}; {left_out:,} without neighbours left out")
    manifest = write_export(add_items(bundle, usable), options.output, overwrite=options.overwrite)
    print("\n".join(report(manifest, options.output)))
    return 0


def _read_vectors(path: Path) -> tuple[list[str], torch.Tensor]:
    """Ids (M) and vectors (M, width) of a table; a UsageError where a cell is no finite number or an id comes twice."""
    try:
        separator = SEPARATORS[path.suffix]
        check_header(path, pd.read_csv(path, sep=separator, header=None, nrows=1, dtype=str).loc[0])
        cells = pd.read_csv(path, sep=separator, index_col="item_id", dtype={"item_id": str}, keep_default_na=False)
        if len(flags := cells.select_dtypes(bool).columns):  # pandas would make 1 and 0 of them
            raise ValueError(f"the column {flags[0]} holds True and False")
        with np.errstate(over="ignore"):
            table = cells.apply(pd.to_numeric, errors="coerce").astype(np.float32)
    except KeyError as error:
        raise UsageError(f"'{path}' must end in .csv or .tsv") from error
    except (OSError, ValueError) as error:
        raise UsageError(
            f"'{path}' is not a table of item_id and numbers, separated by {separator!r}: {error}"
        ) from error
    if not table.size or "" in table.index:
        raise UsageError(f"'{path}' must hold an item_id and at least one number in each line")
    if (repeated := table.index.duplicated()).any():
        raise UsageError(f"'{path}' has item '{table.index[repeated][0]}' twice: keep one of the lines")
    numbers = table.to_numpy()
    wrong = ~np.isfinite(numbers).all(axis=1) | ~numbers.any(axis=1)
    if wrong.any():
        raise UsageError(
            f"'{path}': the numbers of item '{table.index[wrong][0]}' must be finite float32 and not all 0"
        )
    return table.index.tolist(), torch.from_numpy(table.to_numpy())
