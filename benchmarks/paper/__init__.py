"""`python -m benchmarks paper NAME` makes one table or figure of the paper: it trains what is missing, then writes."""

from collections.abc import Sequence

from benchmarks import choose

TABLES = {
    "ranking": "The rows of the ranking table, trained from frozen configurations.",
    "modern": "All mechanisms with the recipe `modern`, in full ranking.",
    "sensitivity": "LISA-Soft and LISA-Mini over the number of codewords W.",
    "migration": "LISA-Base on the frozen codebooks of a vanilla Transformer.",
    "compression": "The compression ratio of exported item tables.",
}


def main(arguments: Sequence[str]) -> int:
    """Run what is missing of a table and write its page; 0, or 1 if a run failed."""
    table = choose(arguments[0] if arguments else "--help", __name__, "table", TABLES)
    return 0 if table is None else int(table.main(arguments[1:]))
