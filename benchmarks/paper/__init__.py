"""`python -m benchmarks paper NAME`: the paper's tables and figures, each by one command over what the package has."""

from collections.abc import Callable, Sequence
from importlib import import_module

from recbole_lisa.errors import UsageError, did_you_mean

_HELP = {
    "ranking": ("the rows of the ranking table, trained from frozen configurations", "commands:ranking"),
    "sensitivity": ("LISA-Soft and LISA-Mini over the number of codewords", "commands:sensitivity"),
    "migration": ("LISA-Base on the codebooks of a vanilla Transformer", "commands:migration"),
    "compression": ("the compression ratio of exported item tables", "commands:compression"),
    "speed": ("time of every attention over lengths", "benchmarks:speed"),
    "memory": ("peak memory of every attention over lengths", "benchmarks:memory"),
    "online": ("a step of a session at growing histories", "benchmarks:online"),
}
NAMES = tuple(_HELP)


def main(argv: Sequence[str]) -> int:
    """Run what is missing of a table or a figure and write its page.

    Args:
        argv: words after `reproduce`: the name, its options, and settings for all runs.

    Returns:
        0, or 1 when a run failed.

    Raises:
        UsageError: an unknown name, row or option, or a package is missing.
    """
    name = argv[0] if argv else ""
    if name in ("-h", "--help"):
        print("usage: python -m benchmarks paper NAME [--help]\n")
        print("\n".join(f"  {known:12} {_HELP[known][0]}" for known in NAMES))
        return 0
    if name not in NAMES:
        raise UsageError(f"unknown table '{name}': known are {', '.join(NAMES)}.{did_you_mean(name, NAMES)}")
    module, _, function = _HELP[name][1].partition(":")
    command: Callable[[Sequence[str]], int] = getattr(import_module(f"{__name__}.{module}"), function)
    return command(argv[1:])
