"""Raw ids of callers turned into numbers, with one policy for ids that the model does not know."""

import sys
import warnings
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from datetime import date, datetime, timezone
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from recbole_lisa.errors import UsageError, did_you_mean, shown
from recbole_lisa.serving.ids import IdMap

POLICIES = ("raise", "warn", "skip")
MAX_NAMED = 3
_OWN_MODULES = ("recbole_lisa", "torch")  # torch has the decorators of public methods
Numbers = npt.NDArray[np.int64]


class History(NamedTuple):
    """Items of one user, oldest first: numbers (L,) int64, and seconds (L,) float64 or None."""

    items: Numbers
    times: npt.NDArray[np.float64] | None


def warn_caller(message: str) -> None:
    """Warn about the line outside of this package that called it."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in _OWN_MODULES:
        frame, level = frame.f_back, level + 1
    warnings.warn(message, stacklevel=level)


def check_policy(on_unknown: str, filter_seen: object = True) -> None:
    """Refuse a policy that does not exist, and a flag that is no bool: the text 'False' would count as True."""
    if not isinstance(filter_seen, bool | np.bool_):
        raise UsageError(f"filter_seen must be True or False, got {shown(filter_seen)}")
    if on_unknown not in POLICIES:
        hint = did_you_mean(str(on_unknown), POLICIES)
        raise UsageError(f"on_unknown must be {', '.join(POLICIES)}, got {shown(on_unknown)}.{hint}")


def as_list(raw: Any, where: str, of: str = "ids") -> list[Any]:
    """A collection as a list; a UsageError where it is a single text, a dict, or no collection."""
    if not isinstance(raw, str | bytes | dict):
        with suppress(TypeError):
            return list(raw)
    advice = f"; write [{raw!r:.80}]" if of == "ids" and isinstance(raw, str | bytes | int) else ""
    raise UsageError(f"{where} must be a list of {of}, got {raw!r:.80}{advice}")


def in_order(raw: Any, where: str, of: str = "ids") -> list[Any]:
    """As `as_list`; a UsageError for a set, too, which has no order."""
    if isinstance(raw, set | frozenset):
        raise UsageError(f"{where} is a {type(raw).__name__}, it must be a list of {of} in order")
    return as_list(raw, where, of)


def numbers_of(
    ids: IdMap, raw: Iterable[Any], on_unknown: str, where: str, *, warn: Callable[[str], None] = warn_caller
) -> tuple[Numbers, npt.NDArray[np.bool_]]:
    """Number raw ids: numbers (K,) of the known ones in their order, and which of all ids are known, (L,).

    on_unknown says what happens to unknown ids: raise, warn (and leave them out), or skip (leave them out). `where` is
    what the ids are, for the message, and `warn` takes that of a warning. A UsageError for an unknown id under raise.
    """
    raw = as_list(raw, where)
    nested = next((one for one in raw if isinstance(one, list | tuple | set | frozenset | dict | np.ndarray)), None)
    if nested is not None:
        raise UsageError(f"{where}: {nested!r} stands where one id belongs: take off a pair of brackets")
    numbers = ids.numbers(raw)
    known = numbers >= 0
    if on_unknown != "skip" and not known.all():
        unknown = ids.unknown(raw)
        named = ", ".join(map(repr, unknown[:MAX_NAMED])) + (", ..." if len(unknown) > MAX_NAMED else "")
        message = f"{where}: {len(unknown)} unknown item{'s' if len(unknown) > 1 else ''}: {named}"
        if on_unknown == "raise":
            raise UsageError(f"{message}; on_unknown=warn or on_unknown=skip leaves them out")
        warn(f"{message}; left out")
    return numbers[known], known


def read_histories(ids: IdMap, histories: Sequence[Any], times: Sequence[Any] | None, on_unknown: str) -> list[History]:
    """Read histories, a collection of raw ids per user, oldest first, with times in seconds or None; see `numbers_of`.

    A UsageError, too, for a history that is a single text, and for times that do not fit.
    """
    check_policy(on_unknown)
    histories = in_order(histories, "histories", "lists of ids")
    times = None if times is None else in_order(times, "times", "lists of seconds")
    if times is not None and len(times) != len(histories):
        raise UsageError(f"times must hold one list for each of the {len(histories)} histories, got {len(times)}")
    read = []
    for n, raw in enumerate(histories):
        numbers, known = numbers_of(ids, in_order(raw, f"history {n}"), on_unknown, f"history {n}")
        read.append(History(numbers, None if times is None else _seconds(times[n], known, f"history {n}")))
    return read


def seconds_of(times: Iterable[Any], where: str) -> npt.NDArray[np.float64]:
    """Times in seconds since 1970 (L,), of numbers or dates; a UsageError where one is neither, such as a text."""
    values = in_order(times, where, "seconds")
    try:
        values = [_of_date(time) if isinstance(time, date | np.datetime64) else time for time in values]
        seconds = np.asarray(values, dtype=np.float64)
        if seconds.ndim != 1 or any(isinstance(time, str | bytes | bool) for time in values):
            raise TypeError(f"got {values[0]!r}")
    except (TypeError, ValueError, OverflowError) as error:
        raise UsageError(f"{where} must be numbers of seconds: {error}") from error
    return seconds


def _of_date(moment: date | np.datetime64) -> float:
    """Seconds since 1970 of a date, in UTC where it names no zone; NaN for NaT."""
    if isinstance(moment, np.datetime64):
        return float((moment - np.datetime64(0, "s")) / np.timedelta64(1, "s"))
    time = moment if isinstance(moment, datetime) else datetime(moment.year, moment.month, moment.day)
    return time.replace(tzinfo=time.tzinfo or timezone.utc).timestamp()


def _seconds(times: Iterable[Any], known: npt.NDArray[np.bool_], where: str) -> npt.NDArray[np.float64]:
    seconds = seconds_of(times, f"the times of {where}")
    if seconds.shape != known.shape:
        raise UsageError(f"{where} has {len(known)} items and {len(seconds)} times: give one time for each item")
    if not np.isfinite(seconds).all() or (np.diff(seconds) < 0).any():
        raise UsageError(f"the times of {where} must be finite and never go back: order items by time, oldest first")
    return seconds[known]
