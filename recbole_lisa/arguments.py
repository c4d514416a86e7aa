"""The command lines' parser: argparse, but a mistake is a `UsageError` like every other."""

import argparse
from typing import NoReturn

from recbole_lisa.errors import UsageError


class UsageParser(argparse.ArgumentParser):
    """Raises instead of printing the usage and ending the process; `--help` still prints and ends."""

    def error(self, message: str) -> NoReturn:
        """Tell the mistake.

        Raises:
            UsageError: Always.
        """
        raise UsageError(message)
