"""Read command lines: argparse with a `UsageError` for a mistake, and settings as --key=value."""

import argparse
import contextlib
import re
import sys
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, NoReturn

from recbole_lisa.errors import UsageError

_MOST = 2**31 - 1


class UsageParser(argparse.ArgumentParser):
    """A parser that raises `UsageError` and takes no abbreviated options; an `epilog` keeps its own line breaks."""

    def __init__(self, prog: str, description: str, epilog: str | None = None) -> None:
        formatter = argparse.HelpFormatter if epilog is None else argparse.RawDescriptionHelpFormatter
        super().__init__(prog, None, description, epilog, formatter_class=formatter, allow_abbrev=False)
        self.register("type", Path, _path)
        self.register("action", None, _Once)

    def error(self, message: str) -> NoReturn:
        """Raise `UsageError` with argparse's message, reworded where it does not say what to write."""
        flag = re.fullmatch(r"argument (\S+): ignored explicit argument (.*)", message, re.DOTALL)
        raise UsageError(
            f"{flag[1]} takes no value, got {flag[2]}: write {flag[1]}, or leave it out" if flag else message
        )

    def parse_with_settings(self, arguments: Sequence[str]) -> tuple[argparse.Namespace, dict[str, Any]]:
        """Read the options, and as settings what `parse_settings` reads of the rest; an option --overwrite is one."""
        options, rest = self.parse_known_args(arguments)
        settings: dict[str, Any] = parse_settings(rest)
        if getattr(options, "overwrite", None) not in (None, False):
            settings["overwrite"] = options.overwrite
        return options, settings

    def _print_message(self, message: str, file: Any = None) -> None:
        """Print help or version; argparse itself hides the error of a full disk."""
        print(message, end="", file=file or sys.stderr, flush=True)


class _Once(argparse.Action):
    """Stores a value, and refuses a second value that differs."""

    earlier: tuple[Any, Any] = (None, None)  # the namespace of a command line, and the value there

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        """Store the value."""
        line, earlier = self.earlier
        if line is namespace and earlier != values:
            given = (f"'{value}'" if isinstance(value, Path) else repr(value) for value in (earlier, values))
            raise UsageError("'{}' is given twice, as {} and as {}: keep one".format(self.option_strings[-1], *given))
        self.earlier = (namespace, values)
        setattr(namespace, self.dest, values)


def _path(text: str) -> Path:
    if not text.strip():  # Path("") is the current folder
        raise argparse.ArgumentTypeError("the path is empty")
    return Path(text)


def positive(text: str, most: int = _MOST) -> int:
    """Convert the text of an option to a whole number of at least 1."""
    with contextlib.suppress(ValueError):
        if 1 <= int(text) <= most:
            return int(text)
    raise argparse.ArgumentTypeError(f"must be a whole number from 1 to {most}, got {text}")


def thread_count(text: str) -> int:
    """Convert the text of an option to a number of threads: OpenMP ends the process where it cannot start them."""
    return positive(text, 1024)


def seconds(text: str) -> float:
    """Convert the text of an option, seconds since 1970 or a date (UTC where it names no zone), to seconds."""
    with contextlib.suppress(ValueError):
        return float(text)
    with contextlib.suppress(ValueError):
        moment = datetime.fromisoformat(text)
        return moment.replace(tzinfo=moment.tzinfo or timezone.utc).timestamp()
    raise argparse.ArgumentTypeError(f"must be seconds since 1970 or a date such as 2026-03-01T18:00, got {text}")


def parse_settings(arguments: Sequence[str]) -> dict[str, str]:
    """Read `--key=value` and `--key value` to key -> text; a UsageError for a key without a value or with two."""
    settings: dict[str, str] = {}
    rest = list(arguments)
    while rest:
        argument = rest.pop(0)
        key, has_value, value = argument.removeprefix("--").partition("=")
        if not argument.startswith("--") or not key:
            raise UsageError(f"unexpected argument '{argument}': settings are written --key=value")
        if not has_value:
            if not rest or rest[0].startswith("--"):
                raise UsageError(f"'{argument}' has no value: write {argument}=value")
            value = rest.pop(0)
        if settings.get(key, value) != value:
            raise UsageError(f"'--{key}' is given twice, as '{settings[key]}' and as '{value}': keep one")
        settings[key] = value
    return settings
