"""Numba kernels of LISA: from keys to histograms to attention weights, and the gradients back.

A row is one position of one sequence; the sequences lie one after the other, R rows in all. Rows are worked on in
blocks whose buffers stay in cache, and a block is cut into parts of `part_rows` rows. Calls, by numba_loops:

    1. sum_rows, over all parts but the last    what the rows of each part add to the histogram
    2. chain                                    the histogram before each part, from the first part to the last
    3. weigh_rows, over the parts of a block    histograms and attention weights of the block's rows
    4. unweigh_rows, over codebooks             backward only: gradients of the block, from its last row to its first

1 and 2 make the parts independent of each other, so threads share the parts of a block in 3. In 4 the gradient of the
histogram runs from each row to the one before it, codebook by codebook, so threads share the codebooks.

Constants such as `zero` take the type of the arrays: a plain 0.0 would turn float32 sums into float64.
A loop that sums does not write to an array: numba_threads says why.
"""

from typing import Any, NamedTuple

from recbole_lisa.ops.numba_threads import compiled, over_range


class Rows(NamedTuple):
    """Operands of every kernel. An array that a call does not use has no rows."""

    # Of all R rows.
    items: Any  # (R,) int64: distinct item of each row, below U
    valid: Any  # (R,) bool: whether the row is a key and has an output
    starts: Any  # (R,) bool: true at the first row of each sequence
    fade: Any  # (R,), or (1,) for all rows: exp(-decay) of the step to the row
    # Of the U distinct items, and of the codebooks.
    query: Any  # (U, B) int64: codes in one numbering of all codebooks, b * W + code
    keys: Any  # (U, B * W): soft keys E; no rows for hard keys, which are the codes
    scores: Any  # (B * W, W): exp(T - row maximum)
    # Numbers.
    part_rows: int  # rows of a part
    first_row: int  # the first row of the block, among all rows
    tiny: Any  # smallest normaliser
    forgotten: Any  # a histogram entry below this becomes 0, as denormal numbers are slow
    most: Any  # largest d A / d F in the gradient of the histogram
    # Of each part; in weigh_rows and unweigh_rows of the parts of the block.
    histograms: Any  # (parts, B * W): the histogram before the part
    factors: Any  # (parts,): see sum_rows
    # Of each row of the block.
    weights: Any  # (rows, B * W): attention A
    inverse: Any  # (B, rows): 1 / Z
    histogram: Any  # (rows, B * W): F, kept for unweigh_rows
    d_weights: Any  # (rows, B * W): gradient of A
    # Gradients.
    later: Any  # (B * W,): gradient of the histogram that the next row passes back
    d_keys: Any  # (U, B * W)
    d_scores: Any  # (B * W, W), of T
    d_fade: Any  # (B, R)


@compiled
def add_keys(f: Any, item: int, is_key: bool, left: Any, query: Any, keys: Any, forgotten: Any) -> None:
    """f = left * f + E of one item, for all codebooks at once; f (B * W,) is overwritten."""
    zero, one = f.dtype.type(0), f.dtype.type(1)
    if is_key and keys.shape[0] > 0:  # a soft key: fade and add in one pass
        key = keys[item]
        for i in range(f.shape[0]):
            kept = f[i] * left + key[i]
            f[i] = zero if abs(kept) < forgotten else kept
        return
    if left != one:  # a hard key adds to B entries only, so without a decay the pass over all is not needed
        for i in range(f.shape[0]):
            kept = f[i] * left
            f[i] = zero if abs(kept) < forgotten else kept
    if is_key:
        for book in range(query.shape[1]):
            f[query[item, book]] += one


@over_range
def sum_rows(first_part: int, end_part: int, op: Rows) -> None:
    """Write what parts first_part..end_part-1 add to the histogram, each for the part after it.

    histograms[part + 1] becomes the sum of the part's own keys, faded to the part's end; factors[part + 1] is what is
    left at its end of the histogram before it, 0 when a sequence starts in the part.
    """
    zero, one = op.histograms.dtype.type(0), op.histograms.dtype.type(1)
    for part in range(first_part, end_part):
        begin, end = part * op.part_rows, (part + 1) * op.part_rows
        # Back to where the sequence starts that goes on in the next part: earlier rows do not reach that part.
        at = end
        while at > begin and not op.starts[at]:
            at -= 1
        factor = zero if op.starts[at] else one
        f = op.histograms[part + 1]
        f[:] = zero
        for row in range(at, end):
            left = op.fade[row if op.fade.shape[0] > 1 else 0]
            factor *= left
            add_keys(f, op.items[row], op.valid[row], left, op.query, op.keys, op.forgotten)
        op.factors[part + 1] = factor


@compiled
def chain(op: Rows) -> None:
    """Turn the sums of the parts into the histogram before each part, in order; histograms[0] is given."""
    zero = op.histograms.dtype.type(0)
    for part in range(1, op.histograms.shape[0]):
        earlier, f, factor = op.histograms[part - 1], op.histograms[part], op.factors[part]
        for i in range(f.shape[0]):
            kept = f[i] + factor * earlier[i]
            f[i] = zero if abs(kept) < op.forgotten else kept


@over_range
def weigh_rows(first_part: int, end_part: int, op: Rows) -> None:
    """Fill weights, inverse and, where it has rows, histogram for some parts of a block.

    Each row takes one step of the recurrence while F (B * W numbers) stays in the first cache, then reads F once.
    """
    zero, one = op.scores.dtype.type(0), op.scores.dtype.type(1)
    n_words = op.scores.shape[1]
    for part in range(first_part, end_part):
        f = op.histograms[part].copy()
        for row in range(part * op.part_rows, min((part + 1) * op.part_rows, op.weights.shape[0])):
            at = op.first_row + row
            item, is_key = op.items[at], op.valid[at]
            # F = exp(-decay) F + E.
            if op.starts[at]:
                f[:] = zero
            left = op.fade[at if op.fade.shape[0] > 1 else 0]
            add_keys(f, item, is_key, left, op.query, op.keys, op.forgotten)
            if op.histogram.shape[0] > 0:
                copy = op.histogram[row]
                for i in range(f.shape[0]):
                    copy[i] = f[i]
            for book in range(op.inverse.shape[0]):
                words = slice(book * n_words, (book + 1) * n_words)
                counts, a, score = f[words], op.weights[row, words], op.scores[op.query[item, book]]
                # First pass: F exp(T), then its sum Z.
                for w in range(n_words):
                    a[w] = counts[w] * score[w]
                total = zero
                for w in range(n_words):
                    total += a[w]
                # Second pass: A = F exp(T) / Z; 0 at padding, so its output is 0.
                scale = one / max(total, op.tiny) if is_key else zero
                op.inverse[book, row] = scale
                for w in range(n_words):
                    a[w] *= scale


@over_range
def unweigh_rows(first_book: int, end_book: int, op: Rows) -> None:  # noqa: C901  # three passes over one row
    """Add the gradients of a block for codebooks first_book..end_book-1, from the block's last row to its first.

    Reads weights, inverse, histogram and histograms[0], the histogram before the block. Adds to d_keys and d_scores,
    writes d_fade, and leaves in later what the block's first row passes back to the block before.
    """
    zero, one = op.scores.dtype.type(0), op.scores.dtype.type(1)
    n_words = op.scores.shape[1]
    columns = slice(first_book * n_words, end_book * n_words)
    h = op.later[columns]  # exp(-decay) H of the row after; below it becomes H of the row itself
    for row in range(op.weights.shape[0] - 1, -1, -1):
        at = op.first_row + row
        item = op.items[at]
        left = op.fade[at if op.fade.shape[0] > 1 else 0]
        for book in range(first_book, end_book):
            words = slice(book * n_words, (book + 1) * n_words)
            f, a, d_a, d_e = op.histogram[row, words], op.weights[row, words], op.d_weights[row, words], op.later[words]
            code = op.query[item, book]
            score, d_score = op.scores[code], op.d_scores[code]
            scale = op.inverse[book, row]
            # First pass: <A, d A>.
            mean = zero
            for w in range(n_words):
                mean += a[w] * d_a[w]
            # Second pass: d F = (d A - <A, d A>) exp(T) / Z goes to H, and F d F to the gradient of T.
            for w in range(n_words):
                slope, centred = score[w] * scale, d_a[w] - mean
                d_score[w] += f[w] * centred * slope
                d_e[w] += centred * min(slope, op.most)
            # Third pass: the gradient of exp(-decay) is <H, F of the row before>; none at the start of a sequence.
            if op.d_fade.shape[0] > 0:
                earlier = op.histogram[row - 1, words] if row > 0 else op.histograms[0, words]
                total = zero
                for w in range(n_words):
                    total += d_e[w] * earlier[w]
                op.d_fade[book, at] = zero if op.starts[at] else total
        # The gradient of E is H.
        if op.d_keys.shape[0] > 0 and op.valid[at]:
            d_key = op.d_keys[item, columns]
            for i in range(h.shape[0]):
                d_key[i] += h[i]
        # What the row before receives: exp(-decay) H, nothing from another sequence.
        if op.starts[at]:
            h[:] = zero
        elif left != one:
            for i in range(h.shape[0]):
                h[i] *= left
