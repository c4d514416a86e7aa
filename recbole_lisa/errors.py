"""The exceptions that end a run with one line, and the hint that goes into their messages."""

import difflib
from collections.abc import Iterable


class UsageError(ValueError):
    """A mistake that the user can correct: the message names the wrong value and what to write instead.

    The command line prints it in one line, without a traceback, and exits with status 2.
    """


class TrainingDivergedError(RuntimeError):
    """A loss or a score is NaN or infinite; the message says where, and at which learning rate.

    The command line prints it in one line, without a traceback, and exits with status 1.
    """


class ProcessFailedError(RuntimeError):
    """One of several processes of a run has ended early; the message says which, and why.

    The command line prints it in one line and exits with status 1.

    Attributes:
        details: The traceback of an error of the program; empty after a mistake of the user.
    """

    def __init__(self, message: str, details: str = "") -> None:
        super().__init__(message)
        self.details = details


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Suggest the known name closest to a misspelt one, ignoring case.

    Returns:
        `" Did you mean 'x'?"`, or an empty string when no known name is close.
    """
    by_lower = {candidate.lower(): candidate for candidate in known}
    close = difflib.get_close_matches(name.lower(), list(by_lower), n=1, cutoff=0.6)
    return f" Did you mean '{by_lower[close[0]]}'?" if close else ""
