"""The command lines' parser: argparse, but a mistake is a `UsageError` like every other."""

import argparse
import contextlib
from typing import NoReturn

from recbole_lisa.errors import UsageError

_MOST = 2**31 - 1


class UsageParser(argparse.ArgumentParser):
    """Raises instead of printing the usage and ending the process; `--help` still prints and ends.

    Options are written out in full.

    Args:
        prog: The command.
        description: What it does.
        epilog: More of it, shown line by line as it is.
    """

    def __init__(self, prog: str, description: str, epilog: str | None = None) -> None:
        as_written, wrapped = argparse.RawDescriptionHelpFormatter, argparse.HelpFormatter
        formatter = wrapped if epilog is None else as_written
        super().__init__(prog, None, description, epilog, formatter_class=formatter, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        """Tell the mistake.

        Raises:
            UsageError: Always.
        """
        raise UsageError(message)


def positive(text: str) -> int:
    """The type of an option: a whole number above 0."""
    with contextlib.suppress(ValueError):
        if 1 <= int(text) <= _MOST:
            return int(text)
    raise argparse.ArgumentTypeError(f"must be a whole number from 1 to {_MOST}, got {text}")
