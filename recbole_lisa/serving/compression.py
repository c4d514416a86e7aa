"""The size of an item table as the paper counts it (LISA, Related Work, after LightRec)."""

import math
from collections.abc import Iterable
from typing import NamedTuple


class CodeTable(NamedTuple):
    """One set of codebooks with the codes of all items: B and W."""

    n_codebooks: int
    n_codewords: int


def dense_bytes(n_items: int, hidden_size: int) -> float:
    """4 V D, the table in float32."""
    return 4.0 * n_items * hidden_size


def coded_bytes(n_items: int, hidden_size: int, tables: Iterable[CodeTable]) -> float:
    """sum of V B log2(W) / 8 + 4 B W D over the sets of codebooks: codes in bits, codewords in float32.

    LISA-Base has one set; LISA-Mini has one for the history and one for the targets.
    """
    return sum(n_items * b * math.log2(w) / 8 + 4.0 * b * w * hidden_size for b, w in tables)
