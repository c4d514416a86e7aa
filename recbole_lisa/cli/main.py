"""The command line `recbole-lisa`: the first argument names the command. Each command has its own file."""

import sys
from collections.abc import Callable, Sequence
from importlib import import_module

from recbole_lisa.cli import EndingAtOnce
from recbole_lisa.cli.reporting import print_any_text, report_errors
from recbole_lisa.errors import UsageError, did_you_mean

COMMANDS = (
    *("run", "download", "convert", "evaluate", "compare", "report", "tune"),
    *("export", "add-items", "recommend", "serve", "migrate", "info", "completion"),
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command that the first of `argv` names, or `run`; return the exit status, see `report_errors`."""
    print_any_text()
    arguments = list(sys.argv[1:] if argv is None else argv)
    name = arguments.pop(0) if arguments and not arguments[0].startswith("-") else "run"
    return report_errors(lambda: _command(name)(arguments))


def _command(name: str) -> Callable[[Sequence[str]], int]:
    if name not in COMMANDS:
        raise UsageError(f"unknown command '{name}': known are {', '.join(COMMANDS)}.{did_you_mean(name, COMMANDS)}")
    with EndingAtOnce():
        module = import_module(f"recbole_lisa.cli.{name.replace('-', '_')}_command")
    command: Callable[[Sequence[str]], int] = module.main
    return command
