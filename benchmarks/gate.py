"""The correctness gate: what is about to be timed must compute what its slow twin computes."""

import functools
from collections.abc import Iterable
from dataclasses import replace

import torch

from benchmarks.errors import GateError
from benchmarks.problem import Problem
from benchmarks.rows import (
    LISA_NAIVE,
    LISA_ONE_PRODUCT,
    SDPA,
    Row,
    attend_quadratically,
    lisa,
    rows_of,
    vanilla,
)

LENGTH, SEQUENCES, ITEMS = 67, 2, 50
TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4, torch.bfloat16: 5e-2, torch.float16: 1e-2}
"""Largest difference allowed, as a share of the largest number of the twin's tensor."""
NOTHING = 5e-2
"""A tensor whose numbers are all below this share of the twin's others is measured by them: it may be 0 exactly."""
TWINS: dict[str, Row] = {
    "LISA-128": functools.partial(lisa, n_codewords=16, attend=attend_quadratically),
    "LISA-128 soft": functools.partial(lisa, n_codewords=16, hard=False, attend=attend_quadratically),
    "LISA-256": functools.partial(lisa, n_codewords=32, attend=attend_quadratically),
    LISA_NAIVE: functools.partial(lisa, n_codewords=16, attend=attend_quadratically),
    LISA_ONE_PRODUCT: functools.partial(lisa, n_codewords=16, attend=attend_quadratically),
    SDPA: functools.partial(vanilla, naive=True),
}
"""Row -> what it must equal. The other mechanisms have their twins in the tests, and the naive Transformer is one."""


def check_rows(names: Iterable[str], problem: Problem) -> None:
    """Compare outputs, and with backward all gradients, with a twin on the CPU in float64, at a small odd length.

    Args:
        names: Rows; those without a twin pass.
        problem: Its part, width, dtype, device, backward and decay are kept.

    Raises:
        GateError: a tensor differs by more than TOLERANCE; the message names the row and the difference.
    """
    small = replace(problem, n=SEQUENCES, length=LENGTH, n_items=ITEMS)
    exact = replace(small, dtype=torch.float64, device=torch.device("cpu"))
    rows = rows_of(problem.part, backward=problem.backward)
    for name in names:
        if name not in TWINS:
            continue
        found, wanted = rows[name](small)(), TWINS[name](exact)()
        sizes = [float(y.detach().abs().max()) for y in wanted]
        for index, (x, y) in enumerate(zip(found, wanted, strict=True)):
            difference = (x.detach().double().cpu() - y.detach()).abs().max()
            error = float(difference) / max(sizes[index], NOTHING * max(sizes))
            if not error <= TOLERANCE[problem.dtype]:
                what = f"gradient {index}" if index else "output"
                raise GateError(
                    f"{name} ({problem.part}) is wrong, nothing was timed: its {what} differs from the twin's by "
                    f"{error:.2g} of the largest number at L={LENGTH}, {TOLERANCE[problem.dtype]:.0e} is allowed"
                )
