"""The loop of codeword_scores."""

from typing import Any

from numba import prange

from recbole_lisa.ops.numba_threads.threads import compiled, in_parts


@compiled
def look_up(first: int, end: int, codes: Any, tables: Any, scores: Any) -> None:
    """scores[i] += sum_b tables[b, codes[i, b]] for some items; codes (m, B), tables (B, W), scores (m,).

    Four codebooks at a time, written out: a loop over all of them takes half as long again.
    """
    n_books = codes.shape[1]
    whole = n_books - n_books % 4
    for book in range(0, whole, 4):
        t = tables[book : book + 4]
        for item in range(first, end):
            code = codes[item, book : book + 4]
            scores[item] += t[0, code[0]] + t[1, code[1]] + t[2, code[2]] + t[3, code[3]]
    for book in range(whole, n_books):
        for item in range(first, end):
            scores[item] += tables[book, codes[item, book]]


@in_parts
def look_up_in_parts(n: int, workers: int, args: Any) -> None:
    """look_up over 0 .. n, cut in as many ranges as there are workers."""
    for i in prange(workers):
        look_up(n * i // workers, n * (i + 1) // workers, *args)
