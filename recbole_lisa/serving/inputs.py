"""Raw ids of callers turned into numbers, with one policy for ids that the model does not know."""

import sys
import warnings
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from recbole_lisa.errors import UsageError, did_you_mean
from recbole_lisa.serving.id_map import IdMap

POLICIES = ("raise", "warn", "skip")
MAX_NAMED = 3
_OWN_MODULES = ("recbole_lisa", "torch")  # torch has the decorators of public methods
Numbers = npt.NDArray[np.int64]


class History(NamedTuple):
    """Items of one user, oldest first: numbers (L,) int64 and seconds (L,) float64, or None where no time is given."""

    items: Numbers
    times: npt.NDArray[np.float64] | None


def check_policy(on_unknown: str) -> None:
    """Refuse a policy that does not exist."""
    if on_unknown not in POLICIES:
        raise UsageError(
            f"on_unknown must be {', '.join(POLICIES)}, got {on_unknown!r}.{did_you_mean(str(on_unknown), POLICIES)}"
        )


def listed(raw: Any, where: str) -> list[Any]:
    """Ids as a list.

    Raises:
        UsageError: they are a single text, or nothing that holds ids.
    """
    if isinstance(raw, str | bytes | int):
        raise UsageError(f"{where} must be a list of ids, got {raw!r}; write [{raw!r}]")
    if not isinstance(raw, Iterable):
        raise UsageError(f"{where} must be a list of ids, got {raw!r}")
    return list(raw)


def numbers_of(ids: IdMap, raw: Iterable[Any], on_unknown: str, where: str) -> tuple[Numbers, npt.NDArray[np.bool_]]:
    """Number raw ids.

    Args:
        ids: the catalogue.
        raw: ids.
        on_unknown: raise, warn or skip.
        where: what the ids are, for the message.

    Returns:
        Numbers (K,) of the known ids in their order, and (L,) which of all ids are known.

    Raises:
        UsageError: an id is unknown and the policy is raise; or see listed.
    """
    given = listed(raw, where)
    numbers = ids.numbers(given)
    known = numbers >= 0
    if not known.all():
        _unknown([one for one, is_known in zip(given, known.tolist(), strict=True) if not is_known], on_unknown, where)
    return numbers[known], known


def _unknown(raw: list[Any], on_unknown: str, where: str) -> None:
    message = f"{where}: {told_unknown(raw)}"
    if on_unknown == "raise":
        raise UsageError(f"{message}; with on_unknown 'warn' or 'skip' they are left out")
    if on_unknown == "warn":
        warnings.warn(f"{message}; left out", stacklevel=_caller_level())


def told_unknown(raw: Sequence[Any]) -> str:
    """How many ids are unknown, and the first of them."""
    named = ", ".join(repr(str(one)) for one in raw[:MAX_NAMED]) + (", ..." if len(raw) > MAX_NAMED else "")
    return f"{len(raw)} unknown item{'s' if len(raw) > 1 else ''}: {named}"


def _caller_level() -> int:
    """The stacklevel, for a warning of the function that asks, of the line outside of this package."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in _OWN_MODULES:
        frame, level = frame.f_back, level + 1
    return level


def read_histories(ids: IdMap, histories: Sequence[Any], times: Sequence[Any] | None, on_unknown: str) -> list[History]:
    """Read histories of raw ids.

    Args:
        ids: the catalogue.
        histories: one iterable of ids a user, oldest first.
        times: one iterable of seconds a user beside it, or None.
        on_unknown: raise, warn or skip.

    Raises:
        UsageError: unknown ids under the policy raise, a history that is a single text, or times that do not fit.
    """
    check_policy(on_unknown)
    if isinstance(histories, str | bytes) or not isinstance(histories, Iterable):
        raise UsageError(f"histories must be a list of lists of ids, got {histories!r}; write [[{histories!r}]]")
    if times is not None and len(times) != len(histories):
        raise UsageError(f"times must hold one list for each of the {len(histories)} histories, got {len(times)}")
    found = []
    for n, raw in enumerate(histories):
        numbers, known = numbers_of(ids, raw, on_unknown, f"history {n}")
        found.append(History(numbers, None if times is None else _seconds(times[n], known, f"history {n}")))
    return found


def _seconds(times: Iterable[Any], known: npt.NDArray[np.bool_], where: str) -> npt.NDArray[np.float64]:
    try:
        seconds = np.asarray(list(times), dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise UsageError(f"the times of {where} must be numbers of seconds: {error}") from error
    if seconds.shape != known.shape:
        raise UsageError(f"{where} has {len(known)} items and {len(seconds)} times: give one time for each item")
    if not np.isfinite(seconds).all() or (np.diff(seconds) < 0).any():
        raise UsageError(f"the times of {where} must be finite and never go back: order items by time, oldest first")
    return seconds[known]
