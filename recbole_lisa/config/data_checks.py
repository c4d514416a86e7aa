"""Check the settings that say how a data set is read and filtered, and parse intervals. No data is read."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from recbole_lisa.errors import UsageError


@dataclass(frozen=True)
class Interval:
    """An interval of numbers, each end open or closed."""

    low: float
    high: float
    low_closed: bool
    high_closed: bool

    def contains(self, numbers: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
        """Which of the numbers lie inside; same shape."""
        above = numbers >= self.low if self.low_closed else numbers > self.low
        below = numbers <= self.high if self.high_closed else numbers < self.high
        return above & below


def parse_intervals(key: str, text: str | None) -> list[Interval]:
    """Parse RecBole's notation of a key, such as `[5,inf)` or `[2,4];(9,20]`; None means no restriction."""
    intervals = []
    for part in str(text).split(";") if text is not None else []:
        stripped = part.strip()
        try:
            low, high = (float(end) for end in stripped[1:-1].split(","))
        except ValueError:
            low, high = math.nan, math.nan
        if not low <= high or stripped[0] not in "([" or stripped[-1] not in ")]":
            raise UsageError(f"{key} must be intervals like '[5,inf)', separated by ';', got {str(text)!r}")
        intervals.append(Interval(low, high, stripped[0] == "[", stripped[-1] == "]"))
    return intervals


def check_reading(settings: Mapping[str, Any]) -> None:
    """Check the settings for reading and filtering files; a UsageError for a wrong one, or two that contradict."""
    encoding = settings["encoding"]
    try:
        "".encode(encoding)
    except (LookupError, ValueError) as error:
        raise UsageError(f"encoding is '{encoding}', it must be a text encoding, such as utf-8 or latin-1") from error
    for key in ("field_separator", "seq_separator"):
        if not settings[key]:
            raise UsageError(f"{key} is {settings[key]!r}, it must be at least one character")
    for key in ("user_inter_num_interval", "item_inter_num_interval"):
        parse_intervals(key, settings[key])
    parts = settings["benchmark_filename"]
    is_list = isinstance(parts, list) and len(parts) == 3 and all(isinstance(name, str) and name for name in parts)
    if parts is not None and not (is_list and len(set(parts)) == 3):
        raise UsageError(f"benchmark_filename is {parts!r}, it must be three names that differ: [train, valid, test]")
    if settings["unload_col"] and settings["load_col"]:
        raise UsageError(f"unload_col and load_col ({settings['load_col']}) are both set: set one of them to ~")
