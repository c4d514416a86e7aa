"""Numba kernel of the gradients of pair_scores."""

from collections import namedtuple

from recbole_lisa.ops.numba_threads import over_range

UndoScores = namedtuple("UndoScores", "hidden table index grad d_hidden d_table")
"""Reads hidden (M, D), table (U, D), index (M, R), grad (M, R); adds to d_hidden (M, D) and d_table (U, D)."""


@over_range
def undo_scores(first: int, end: int, op: UndoScores) -> None:
    """UndoScores in the columns first..end-1: threads share no column, so none waits and the sums have one order."""
    for row in range(op.index.shape[0]):
        h, d_h = op.hidden[row, first:end], op.d_hidden[row, first:end]
        for r in range(op.index.shape[1]):
            g = op.grad[row, r]
            item, d_item = op.table[op.index[row, r], first:end], op.d_table[op.index[row, r], first:end]
            for i in range(end - first):
                d_item[i] += g * h[i]
                d_h[i] += g * item[i]
