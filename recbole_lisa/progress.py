"""Bars with the time left, on stderr: on a terminal only, and only in the first process of a run."""

import os
import sys
from collections.abc import Iterable
from typing import Any

_DELAY_S = 1.0


def bars_shown(show_progress: bool = True) -> bool:
    """Whether bars are shown; torchrun gives each process its RANK."""
    return show_progress and os.environ.get("RANK", "0") == "0" and sys.stderr.isatty()


def progress_bar(
    iterable: Iterable[Any] | None = None,
    description: str = "",
    *,
    total: int | None = None,
    unit: str = "it",
    show_progress: bool = True,
    keep: bool = False,
) -> Any:
    """The same elements with a bar, or without `iterable` a bar to `update`: a tqdm, which is a context manager.

    The bar appears after a second, and disappears at the end; with `keep` it appears at once, and stays.
    """
    from tqdm import tqdm  # imported late: serving an export does without it

    options = {"unit": unit, "unit_scale": unit != "it", "leave": keep, "delay": 0 if keep else _DELAY_S}
    return tqdm(iterable, description, total, disable=not bars_shown(show_progress), **options)
