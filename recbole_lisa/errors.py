"""The exceptions that end a run with one line, and the hints that go into their messages."""

import contextlib
import difflib
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pydantic import ValidationError

RECBOLE = "1.2.1"  # the release of RecBole whose methods this package overrides
INSTALL_RECBOLE = f"pip install --no-deps recbole=={RECBOLE}"


def shortened(text: str) -> str:
    """Cut the middle of each value of 300 or more characters without a blank, and of a message above 2000."""
    text = re.sub(r"\S{300,}", lambda word: f"{word[0][:80]}...{word[0][-20:]}", text)
    return text if len(text) <= 2000 else f"{text[:1500]} ... {text[-400:]}"


def shown(value: object) -> str:
    """A wrong value in a message: its repr, or its type where that is longer than a line."""
    text = repr(value)
    return text if len(text) <= 80 and "\n" not in text else f"a value of the type {type(value).__name__}"


class UsageError(ValueError):
    """A mistake that the user can correct: the message names the wrong value and what to write instead.

    The command line prints it in one line, without a traceback, and exits with status 2. See `shortened`.
    """

    def __init__(self, message: str = "") -> None:
        super().__init__(shortened(message))


class TrainingDivergedError(RuntimeError):
    """A loss or a score is NaN or infinite; the message says where, and at which learning rate.

    The command line prints it in one line, without a traceback, and exits with status 1.
    """


class ProcessFailedError(RuntimeError):
    """One of several processes of a run has ended early; the message says which, and why.

    The command line prints it in one line and exits with status 1. `details` is the traceback of an error of the
    program; it is empty after a mistake of the user.
    """

    def __init__(self, message: str, details: str = "") -> None:
        super().__init__(message)
        self.details = details


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Suggest the known name closest to a misspelt one: `" Did you mean 'x'?"`, or an empty string. Case is ignored."""
    by_lower = {candidate.lower(): candidate for candidate in known}
    close = difflib.get_close_matches(name.lower(), list(by_lower), n=1, cutoff=0.65)
    return f" Did you mean '{by_lower[close[0]]}'?" if close else ""


@contextlib.contextmanager
def advise_missing_recbole() -> Iterator[None]:
    """Raise a UsageError with the command that installs RecBole if an import in the block does not find it."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "recbole":  # a module that another release lacks, as well
            raise
        raise UsageError(f"RecBole {RECBOLE} is not installed: {INSTALL_RECBOLE}") from error


def install_extra(extra: str, checkout: Path = Path(__file__).parents[1]) -> str:
    """The command that installs an extra: an editable install in a `checkout`, the packages by name elsewhere."""
    if (checkout / "setup.cfg").is_file():
        return f"pip install -e '{checkout}[{extra}]'"
    from importlib import metadata

    from packaging.requirements import Requirement

    try:
        requirements = metadata.requires("recbole-lisa") or []
    except metadata.PackageNotFoundError:  # the folder is only on the path
        requirements = []
    pattern = re.compile(rf"extra == ['\"]{extra}['\"]")
    markers = {one: Requirement(one).marker for one in requirements if pattern.search(one)}
    of_extra = [one for one, marker in markers.items() if marker and marker.evaluate({"extra": extra})]
    names = [one.partition(";")[0].strip() for one in of_extra]
    return " ".join(["pip install", *map("'{}'".format, names)]) if names else f"install the packages of {extra}"


def first_mistake(error: "ValidationError") -> str:
    """The first mistake that a schema finds, in one line: `items.n_items: input should be greater than 0`."""
    first = error.errors(include_url=False, include_input=False)[0]
    place = ".".join(repr(str(part))[1:-1] for part in first["loc"])  # without control characters
    return f"{place}: {first['msg'][:1].lower()}{first['msg'][1:]}"


def check_header(path: object, names: Iterable[Any]) -> None:
    """Raise a UsageError where the first line of a table names a column twice."""
    for name, count in Counter(names).items():
        if count > 1:
            raise UsageError(f"{path}: the first line names the column {name} twice: rename one of them")
