"""Loops over rows that Numba compiles for the CPU: one pass does what takes a dozen tensor operations.

Each of those would move the whole block through memory. The modules beside `sharing` import Numba; they are imported
when they are first needed, so that the package works, slower, without it.
"""

from recbole_lisa.ops.numba_threads.threads import (
    array,
    arrays,
    check_rows,
    cut_rows,
    loops_serve,
    share,
    targets,
    trains_eagerly,
)

__all__ = ["array", "arrays", "check_rows", "cut_rows", "trains_eagerly", "loops_serve", "share", "targets"]
