"""`python -m benchmarks NAME`: timings and memory of the models' own objects beside what they are compared with."""

import sys
from collections.abc import Sequence
from importlib import import_module

from benchmarks.errors import GateError
from benchmarks.options import VERBS
from recbole_lisa.cli.arguments import UsageParser
from recbole_lisa.cli.reporting import report_errors
from recbole_lisa.errors import UsageError, did_you_mean


def main(argv: Sequence[str] | None = None) -> int:
    """Run a benchmark, or with the first argument `paper` a table of the paper.

    Args:
        argv: Arguments after the program's name; by default those of the process.

    Returns:
        The exit status; an expected error is one line on stderr, see `report_errors`.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    if words[:1] != ["paper"]:
        return report_errors(lambda: run_benchmark(words))
    paper = import_module("benchmarks.paper")
    return report_errors(lambda: paper.main(words[1:]), going_on=": the same command continues where it stopped")


def run_benchmark(argv: Sequence[str]) -> int:
    """Run the benchmark that the first word names.

    Args:
        argv: its name and options.

    Returns:
        0, or 1 when what was to be timed computes something wrong.

    Raises:
        UsageError: on a missing or unknown benchmark, or an unknown option.
    """
    name = argv[0] if argv else ""
    if name in ("-h", "--help"):
        print("usage: python -m benchmarks NAME [--help]\n")
        print("\n".join(f"  {verb:10} {VERBS[verb].description}" for verb in VERBS))
        print("  paper      the paper's tables and figures: python -m benchmarks paper --help")
        return 0
    if not name:
        raise UsageError(f"which benchmark? Known are {', '.join(VERBS)}: python -m benchmarks step [--help]")
    if name not in VERBS:
        raise UsageError(f"unknown benchmark '{name}': known are {', '.join(VERBS)}.{did_you_mean(name, VERBS)}")
    verb = VERBS[name]
    parser = UsageParser(f"python -m benchmarks {name}", verb.description)
    verb.add_options(parser)
    try:
        options = parser.parse_args(argv[1:])
    except UsageError as error:
        raise UsageError(f"benchmark {name}: {error}") from error
    options.command = " ".join(["python -m benchmarks", *argv])
    # Imported late: a mistake on the command line should not wait for torch.
    module, _, function = verb.run.partition(":")
    try:
        getattr(import_module(module), function)(options)
    except GateError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0
