"""Dropout masks for the CPU from 16 random bits an element: p is rounded to 1 / 65,536.

torch's own dropout draws one number an element there, which takes longer than LISA's whole attention. The Numba kernels
hash a seed and the element's number instead, so the backward pass makes the same mask again and nothing is kept.
"""

from typing import Any, NamedTuple

import numpy as np
import torch

from recbole_lisa.ops.checks import check_number

LEVELS = 2**16
"""Values of 16 bits."""


class Mask(NamedTuple):
    """A dropout mask. The operands of a kernel with a mask have the same fields."""

    seed: np.ndarray[Any, np.dtype[np.uint32]]  # (2,)
    threshold: int  # how many of the LEVELS values drop an element, 0 for no dropout
    scale: float  # the factor of the kept elements, 1 / (1 - p)
    first_row: int = 0  # the number of the kernel's first row in the mask

    def at(self, row: int) -> dict[str, Any]:
        """The same mask from a row on, by field, for the named tuple of a kernel."""
        return self._replace(first_row=row)._asdict()


def draw_mask(p: float) -> Mask:
    """A mask that drops elements with probability p; its seed comes from torch's default generator.

    For p = 0 that generator stays where it is: evaluating a model must not change how it trains on.
    """
    check_number("dropout", p, 0, 1)
    threshold = min(round(p * LEVELS), LEVELS - 1)
    seed = torch.empty(2, dtype=torch.int64).random_(0, 2**32) if threshold else torch.zeros(2, dtype=torch.int64)
    return Mask(seed.numpy().astype(np.uint32), threshold, LEVELS / (LEVELS - threshold))
