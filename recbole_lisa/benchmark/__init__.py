"""`recbole-lisa benchmark NAME`: timings and memory of the models' own objects beside what they are compared with."""

import sys
from collections.abc import Sequence
from importlib import import_module

from recbole_lisa.arguments import UsageParser
from recbole_lisa.benchmark.options import VERBS
from recbole_lisa.errors import UsageError, did_you_mean


def main(argv: Sequence[str]) -> int:
    """Run the benchmark that the first word names.

    Args:
        argv: words after `benchmark`.

    Returns:
        0, or 1 when what was to be timed computes something wrong.

    Raises:
        UsageError: on a missing or unknown benchmark, or an unknown option.
    """
    name = argv[0] if argv else ""
    if name in ("-h", "--help"):
        print("usage: recbole-lisa benchmark NAME [--help]\n")
        print("\n".join(f"  {verb:10} {VERBS[verb].description}" for verb in VERBS))
        return 0
    if not name:
        raise UsageError(f"which benchmark? Known are {', '.join(VERBS)}: recbole-lisa benchmark step [--help]")
    if name not in VERBS:
        raise UsageError(f"unknown benchmark '{name}': known are {', '.join(VERBS)}.{did_you_mean(name, VERBS)}")
    verb = VERBS[name]
    parser = UsageParser(f"recbole-lisa benchmark {name}", verb.description)
    verb.add_options(parser)
    try:
        options = parser.parse_args(argv[1:])
    except UsageError as error:
        raise UsageError(f"benchmark {name}: {error}") from error
    options.command = " ".join(["recbole-lisa benchmark", *argv])
    # Imported late: a mistake on the command line should not wait for torch.
    module, _, function = verb.run.partition(":")
    from recbole_lisa.benchmark.gate import GateError

    try:
        getattr(import_module(module), function)(options)
    except GateError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0
