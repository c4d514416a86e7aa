"""One progress bar for training and evaluation, in RecBole's style."""

import sys
from collections.abc import Iterable
from typing import Any

from recbole.utils import set_color
from tqdm import tqdm

from recbole_lisa.distributed.processes import is_first


def progress_bar(batches: Iterable[Any], total: int, description: str, shown: bool) -> Iterable[Any]:
    """Wrap a loader with a bar on a terminal; a log file that catches stderr is not filled with bars.

    Args:
        batches: Batches of a loader.
        total: Number of batches.
        description: What the bar says in front.
        shown: False never draws it; of several processes the first one does.

    Returns:
        An iterable over the same batches.
    """
    if not shown or not is_first() or not sys.stderr.isatty():
        return batches
    return tqdm(batches, total=total, ncols=100, desc=set_color(description, "pink"))
