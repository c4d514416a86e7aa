"""`recbole-lisa benchmark NAME`: timings of the models' own objects beside the naive formulation."""

import argparse
from collections.abc import Sequence

from recbole_lisa.errors import UsageError, did_you_mean

NAMES = ("step",)


def main(argv: Sequence[str]) -> int:
    """Run the benchmark that the first word names.

    Args:
        argv: words after `benchmark`.

    Returns:
        0.

    Raises:
        UsageError: on a missing or unknown benchmark, or an unknown option.
    """
    name = argv[0] if argv else ""
    if name in ("", "-h", "--help"):
        raise UsageError(f"which benchmark? Known are {', '.join(NAMES)}: recbole-lisa benchmark {NAMES[0]} [--help]")
    if name not in NAMES:
        raise UsageError(f"unknown benchmark '{name}': known are {', '.join(NAMES)}.{did_you_mean(name, NAMES)}")
    parser = argparse.ArgumentParser(prog=f"recbole-lisa benchmark {name}", exit_on_error=False)
    parser.add_argument("--models", nargs="+", default=["LISASoft", "LISAMini", "LISABase"])
    parser.add_argument("--batch", type=int, default=128, help="sequences N (default 128)")
    parser.add_argument("--length", type=int, default=200, help="positions L (default 200)")
    parser.add_argument("--items", type=int, default=3417, help="items V, padding included (default: ML-1M's 3417)")
    parser.add_argument("--repeats", type=int, default=5, help="timed steps of each side (default 5)")
    parser.add_argument("--threads", type=int, default=None, help="torch threads (default: all cores)")
    parser.add_argument("--output", default=None, help="write the rows as JSON to this file")
    try:
        options = parser.parse_args(argv[1:])
    except (argparse.ArgumentError, SystemExit) as error:
        if isinstance(error, SystemExit) and not error.code:
            raise
        raise UsageError(f"benchmark {name}: {error}") from error
    # Imported late: a mistake on the command line should not wait for torch.
    from recbole_lisa.benchmark.step import benchmark_step

    benchmark_step(
        options.models,
        n=options.batch,
        length=options.length,
        n_items=options.items,
        repeats=options.repeats,
        threads=options.threads,
        output=options.output,
    )
    return 0
