"""The loops of lisa_loops: from keys to attention weights, and back."""

from typing import Any

from numba import prange

from recbole_lisa.ops.numba_threads.threads import compiled, in_parts


@compiled
def add_keys(f: Any, item: int, here: bool, left: Any, query: Any, keys: Any, numbers: Any) -> None:
    """f = left f + E, all codebooks (B * W,); operands as in weigh_rows."""
    zero, one, forgotten = numbers[0], numbers[1], numbers[3]
    if here and keys.shape[0] > 0:
        key = keys[item]
        for i in range(f.shape[0]):
            kept = f[i] * left + key[i]
            f[i] = zero if abs(kept) < forgotten else kept
        return
    if left != one:
        for i in range(f.shape[0]):
            kept = f[i] * left
            f[i] = zero if abs(kept) < forgotten else kept
    if here:
        for book in range(query.shape[1]):
            f[query[item, book]] += one


@compiled
def sum_rows(
    first_part: int,
    end_part: int,
    part_rows: int,
    items: Any,
    query: Any,
    keys: Any,
    valid: Any,
    fade: Any,
    starts: Any,
    numbers: Any,
    histograms: Any,
    factors: Any,
) -> None:
    """The histogram of a part's own rows, and the factor by which what was before it has faded at its end.

    They are written for the part that follows, one further on: histograms (parts, B * W), factors (parts,).
    """
    zero, one = numbers[0], numbers[1]
    for part in range(first_part, end_part):
        begin, end = part * part_rows, (part + 1) * part_rows
        at = end
        while at > begin and not starts[at]:  # back to where the sequence begins that goes on in the next part
            at -= 1
        factor = zero if starts[at] else one
        f = histograms[part + 1]
        f[:] = zero
        for row in range(at, end):
            left = fade[row if fade.shape[0] > 1 else 0]
            factor *= left
            add_keys(f, items[row], valid[row], left, query, keys, numbers)
        factors[part + 1] = factor


@in_parts
def sum_rows_in_parts(n: int, workers: int, args: Any) -> None:
    """sum_rows over 0 .. n, cut in as many ranges as there are workers."""
    for i in prange(workers):
        sum_rows(n * i // workers, n * (i + 1) // workers, *args)


@compiled
def chain(factors: Any, numbers: Any, histograms: Any) -> None:
    """From the histograms of each part's own rows to those before each part; the first is given."""
    zero, forgotten = numbers[0], numbers[3]
    for part in range(1, histograms.shape[0]):
        earlier, f, factor = histograms[part - 1], histograms[part], factors[part]
        for i in range(f.shape[0]):
            kept = f[i] + factor * earlier[i]
            f[i] = zero if abs(kept) < forgotten else kept


@compiled
def weigh_rows(
    first_part: int,
    end_part: int,
    part_rows: int,
    items: Any,
    query: Any,
    keys: Any,
    valid: Any,
    fade: Any,
    starts: Any,
    numbers: Any,
    first_row: int,
    scores: Any,
    histograms: Any,
    weights: Any,
    inverse: Any,
    histogram: Any,
) -> None:
    """E -> F -> A of some parts of a block: fill weights (rows, B * W), inverse = 1 / Z (B, rows) and histogram.

    items (R,), query (U, B) flat codes, keys (U, B * W), without rows for hard ones, valid (R,), fade (R,) or (1,)
    exp(-decay), starts (R,) true where a sequence begins, numbers of their dtype, because plain ones would turn sums
    into float64, scores (B * W, W) exp(T); histograms (parts, B * W) are those before each part; histogram
    (rows, B * W) may have no rows.
    """
    zero, one, tiny = numbers[0], numbers[1], numbers[2]
    n_words = scores.shape[1]
    for part in range(first_part, end_part):
        f = histograms[part].copy()
        for row in range(part * part_rows, min((part + 1) * part_rows, weights.shape[0])):
            at = first_row + row
            item, here = items[at], valid[at]
            if starts[at]:
                f[:] = zero
            add_keys(f, item, here, fade[at if fade.shape[0] > 1 else 0], query, keys, numbers)
            if histogram.shape[0] > 0:
                copy = histogram[row]
                for i in range(f.shape[0]):
                    copy[i] = f[i]
            for book in range(inverse.shape[0]):
                words = slice(book * n_words, (book + 1) * n_words)
                counts, a, score = f[words], weights[row, words], scores[query[item, book]]
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
def unweigh_rows(  # noqa: C901  # one pass over a row does it all
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
