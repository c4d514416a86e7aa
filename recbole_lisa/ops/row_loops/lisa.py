"""The loops of lisa_loops: from keys to attention weights, and back."""

from typing import Any

from numba import prange

from recbole_lisa.ops.row_loops.sharing import compiled, in_parts


@compiled
def weigh_rows(  # noqa: C901  # one pass over a row: a loop that calls others would not be one
    first_book: int,
    end_book: int,
    items: Any,
    query: Any,
    keys: Any,
    valid: Any,
    scores: Any,
    fade: Any,
    starts: Any,
    first_row: int,
    numbers: Any,
    carry: Any,
    weights: Any,
    inverse: Any,
    histogram: Any,
) -> None:
    """E -> F -> A of some codebooks: fill weights (rows, B * W), inverse = 1 / Z (B, rows) and histogram (rows, B * W).

    items (R,), query (U, B) flat codes, keys (U, B * W), without rows for hard ones, valid (R,), scores (B * W, W)
    exp(T), fade (R,) or (1,) exp(-decay), starts (R,) true where a sequence begins, numbers of their dtype, because
    plain ones would turn sums into float64; carry (B * W,) is the histogram before the block and then that after it;
    histogram may have no rows.
    """
    zero, one, tiny, forgotten = numbers[0], numbers[1], numbers[2], numbers[3]
    n_words = scores.shape[1]
    columns = slice(first_book * n_words, end_book * n_words)
    hard = keys.shape[0] == 0
    f = carry[columns]
    for row in range(weights.shape[0]):
        at = first_row + row
        item, here = items[at], valid[at]
        left = fade[at if fade.shape[0] > 1 else 0]
        if starts[at]:
            f[:] = zero
        if hard or not here:
            if left != one:
                for i in range(f.shape[0]):
                    kept = f[i] * left
                    f[i] = zero if abs(kept) < forgotten else kept
            if here:
                for book in range(first_book, end_book):
                    carry[query[item, book]] += one
        else:
            key = keys[item, columns]
            for i in range(f.shape[0]):
                kept = f[i] * left + key[i]
                f[i] = zero if abs(kept) < forgotten else kept
        if histogram.shape[0] > 0:
            copy = histogram[row, columns]
            for i in range(f.shape[0]):
                copy[i] = f[i]
        for book in range(first_book, end_book):
            words = slice(book * n_words, (book + 1) * n_words)
            counts, a, score = carry[words], weights[row, words], scores[query[item, book]]
            total = zero
            for w in range(n_words):
                a[w] = counts[w] * score[w]
                total += a[w]
            scale = one / max(total, tiny) if here else zero
            inverse[book, row] = scale
            for w in range(n_words):
                a[w] *= scale


@in_parts
def weigh_rows_in_parts(n: int, workers: int, args: Any) -> None:
    """weigh_rows over 0 .. n, cut in as many ranges as there are workers."""
    for i in prange(workers):
        weigh_rows(n * i // workers, n * (i + 1) // workers, *args)


@compiled
def unweigh_rows(  # noqa: C901  # as weigh_rows
    first_book: int,
    end_book: int,
    items: Any,
    query: Any,
    valid: Any,
    scores: Any,
    fade: Any,
    starts: Any,
    first_row: int,
    numbers: Any,
    weights: Any,
    inverse: Any,
    histogram: Any,
    before: Any,
    d_weights: Any,
    later: Any,
    d_keys: Any,
    d_scores: Any,
    d_fade: Any,
) -> None:
    """The same rows from last to first: add to d_keys (U, B * W), d_scores (B * W, W) by T, and d_fade (B, R).

    later (B * W,) is exp(-decay) H of the row after the block, then that of the block's first; before (B * W,) is the
    histogram before the block; d_keys and d_fade may have no rows, the others are as in weigh_rows.
    """
    zero, one = numbers[0], numbers[1]
    n_words = scores.shape[1]
    columns = slice(first_book * n_words, end_book * n_words)
    h = later[columns]
    for row in range(weights.shape[0] - 1, -1, -1):
        at = first_row + row
        item = items[at]
        left = fade[at if fade.shape[0] > 1 else 0]
        for book in range(first_book, end_book):
            words = slice(book * n_words, (book + 1) * n_words)
            f, a, d_a, d_e = histogram[row, words], weights[row, words], d_weights[row, words], later[words]
            code = query[item, book]
            score, d_score = scores[code], d_scores[code]
            scale = inverse[book, row]
            mean = zero
            for w in range(n_words):
                mean += a[w] * d_a[w]
            for w in range(n_words):
                slope = (d_a[w] - mean) * score[w] * scale
                d_score[w] += f[w] * slope
                d_e[w] += slope
            if d_fade.shape[0] > 0:
                earlier = histogram[row - 1, words] if row > 0 else before[words]
                total = zero
                for w in range(n_words):
                    total += d_e[w] * earlier[w]
                d_fade[book, at] = zero if starts[at] else total
        if d_keys.shape[0] > 0 and valid[at]:
            d_key = d_keys[item, columns]
            for i in range(h.shape[0]):
                d_key[i] += h[i]
        if starts[at]:
            h[:] = zero
        elif left != one:
            for i in range(h.shape[0]):
                h[i] *= left


@in_parts
def unweigh_rows_in_parts(n: int, workers: int, args: Any) -> None:
    """unweigh_rows over 0 .. n, cut in as many ranges as there are workers."""
    for i in prange(workers):
        unweigh_rows(n * i // workers, n * (i + 1) // workers, *args)
