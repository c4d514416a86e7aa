"""`python -m benchmarks NAME` measures the package and what it is compared with.

Each benchmark is a module with `add_options(parser)` and `run(options)`.
"""

import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

from benchmarks.measure import CheckError
from recbole_lisa.cli.arguments import UsageParser
from recbole_lisa.cli.main import report_errors
from recbole_lisa.errors import UsageError, did_you_mean
from recbole_lisa.files import advise_after_interruption

BENCHMARKS = {
    "attention": "Time and memory of every attention mechanism over lengths, forward or with backward.",
    "step": "A training step of the LISA models, compared with a naive implementation.",
    "memory": "Peak memory of every mechanism at the largest batch that fits for all of them.",
    "serving": "Packed codes against a dense item table; a session step against cached keys and values.",
    "service": "The HTTP service under mixed load: wrong answers, requests per second, times, memory.",
    "packages": "Forward and backward beside the public package of each mechanism; the packages are the extra oracles.",
    "data": "Time and memory of preparing a data set at growing MAX_ITEM_LIST_LENGTH.",
    "interactions": "Write a file of generated interactions: users, items and rows of any number, power laws.",
    "gpu": "The GPU tests, benchmarks and a short training, within a budget of seconds.",
    "paper": "The paper's tables and figures, see python -m benchmarks paper --help.",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run a benchmark, or with the first argument `paper` a table of the paper.

    The exit status is 0, or after one line on stderr 1 (a correctness check failed) or 2 (a wrong argument).
    """
    name, *arguments = list(sys.argv[1:] if argv is None else argv) or ["--help"]
    with_advice = advise_after_interruption(lambda: "run the same command again")
    return report_errors(lambda: with_advice(_run)(name, arguments))


def choose(name: str, package: str, kind: str, known: Mapping[str, str]) -> Any:
    """The module of a name; for --help, None after a list of the known names. Raises UsageError."""
    if name in ("-h", "--help"):
        width = max(map(len, known)) + 1
        print(f"usage: python -m {package.replace('.', ' ')} NAME [--help]\n")
        print("\n".join(f"  {one:{width}} {text}" for one, text in known.items()))
        return None
    if name not in known:
        raise UsageError(f"unknown {kind} '{name}': known are {', '.join(known)}.{did_you_mean(name, known)}")
    return import_module(f"{package}.{name}")


def _run(name: str, arguments: Sequence[str]) -> int:
    benchmark = choose(name, "benchmarks", "benchmark", BENCHMARKS)
    if benchmark is None:
        return 0
    if name == "paper":
        return int(benchmark.main(arguments))
    parser = UsageParser(f"python -m benchmarks {name}", BENCHMARKS[name])
    benchmark.add_options(parser)
    options = parser.parse_args(arguments)
    options.command = " ".join(["python -m benchmarks", name, *arguments])
    try:
        benchmark.run(options)
    except CheckError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0
