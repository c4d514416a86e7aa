"""The Numba kernel of codeword_scores."""

from collections import namedtuple

from recbole_lisa.ops.numba_threads import over_range

LookUp = namedtuple("LookUp", "codes tables scores")
"""codes (m, B) and tables (B, W) are read; scores (m,) are added to."""


@over_range
def look_up(first: int, end: int, op: LookUp) -> None:
    """scores[i] += sum_b tables[b, codes[i, b]] for items first..end-1."""
    n_books = op.codes.shape[1]
    whole = n_books - n_books % 4
    # Four codebooks at a time, written out: their tables stay in cache, and a loop over all takes half as long again.
    for book in range(0, whole, 4):
        t = op.tables[book : book + 4]
        for item in range(first, end):
            code = op.codes[item, book : book + 4]
            op.scores[item] += t[0, code[0]] + t[1, code[1]] + t[2, code[2]] + t[3, code[3]]
    # The up to three codebooks that are left.
    for book in range(whole, n_books):
        for item in range(first, end):
            op.scores[item] += op.tables[book, op.codes[item, book]]
