"""`python -m benchmarks paper NAME` makes one table or figure of the paper: it trains what is missing, then writes."""

from collections.abc import Sequence
from importlib import import_module

from recbole_lisa.errors import UsageError, did_you_mean

TABLES = {
    "ranking": "The rows of the ranking table, trained from frozen configurations.",
    "sensitivity": "LISA-Soft and LISA-Mini over the number of codewords W.",
    "migration": "LISA-Base on the frozen codebooks of a vanilla Transformer.",
    "compression": "The compression ratio of exported item tables.",
}


def main(arguments: Sequence[str]) -> int:
    """Run what is missing of a table and write its page; 0, or 1 if a run failed."""
    name = arguments[0] if arguments else "--help"
    if name in ("-h", "--help"):
        print("usage: python -m benchmarks paper NAME [--help]\n")
        print("\n".join(f"  {known:12} {text}" for known, text in TABLES.items()))
        return 0
    if name not in TABLES:
        raise UsageError(f"unknown table '{name}': known are {', '.join(TABLES)}.{did_you_mean(name, TABLES)}")
    return int(import_module(f"{__name__}.{name}").main(arguments[1:]))
