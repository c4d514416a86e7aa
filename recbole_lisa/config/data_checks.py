"""Check the settings that say how a data set is read and filtered, and parse intervals. No data is read."""

from collections.abc import Mapping
from typing import Any, Literal

import pandas as pd

from recbole_lisa.errors import UsageError

Intervals = list["pd.Interval[float]"]
_CLOSED: dict[str, Literal["both", "left", "right", "neither"]]
_CLOSED = {"[]": "both", "[)": "left", "(]": "right", "()": "neither"}


def parse_intervals(key: str, text: str | None) -> Intervals:
    """Parse RecBole's notation of a key, such as `[5,inf)` or `[2,4];(9,20]`; None means no restriction."""
    intervals = []
    for part in map(str.strip, str(text).split(";") if text is not None else []):
        try:
            low, high = (float(end) for end in part[1:-1].split(","))
            intervals.append(pd.Interval(low, high, _CLOSED[part[0] + part[-1]]))
        except (ValueError, KeyError) as error:
            raise UsageError(f"{key} must be intervals like '[5,inf)', separated by ';', got {str(text)!r}") from error
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
