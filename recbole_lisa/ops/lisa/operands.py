"""Checks of the operands of LISA's functions, all before any kernel runs, and the type that they work in."""

import math

import torch
from torch import Tensor

from recbole_lisa.ops.checks import check_number, check_operands
from recbole_lisa.ops.lisa.readout import SAFE_SPAN
from recbole_lisa.ops.numba_threads import check_rows


def check_lisa(
    codes: Tensor, table: Tensor, values: Tensor, assignment: Tensor | None, decay: float | Tensor, rows: str = "U"
) -> None:
    """A ValueError for operands of lisa_attention_items, or with rows "N L" of lisa_attention, that do not fit.

    On the CPU also for codes, decays or assignments out of range, but not for NaN: the output has it.
    """
    forms = f"table: floating-point B+ W+ W; values: floating-point B W D; codes: integer {rows} B"
    check_operands(f"{forms}; assignment?: floating-point {rows} B W", table, values, codes, assignment)
    if isinstance(decay, Tensor) and decay.is_complex():
        raise ValueError(f"decay must be real numbers, got {decay.dtype}")
    lowest: object = decay
    if isinstance(decay, Tensor):
        lowest = float(decay.detach().min()) if decay.device.type == "cpu" and decay.numel() else 0.0
    check_number("decay", 0 if lowest == math.inf else lowest, 0)
    if codes.device.type == "cpu" and codes.numel():  # on a GPU this would wait
        low, high = (int(x) for x in codes.aminmax())
        if low < 0 or high >= table.shape[1]:
            raise ValueError(f"codes must lie in 0..{table.shape[1] - 1} (W - 1), got {low if low < 0 else high}")
        least, most = (0.0, 0.0) if assignment is None else map(float, assignment.detach().aminmax())
        if least < 0 or most == math.inf:
            raise ValueError(f"assignment must be at least 0 and finite, got {least:g}..{most:g}")


def checked_steps(
    items: Tensor, codes: Tensor, decay: float | Tensor, valid: Tensor | None, *, masked: bool = False
) -> Tensor:
    """The decay as float64, 0-d or (N, L), for items (N, L), rows of codes (U, B); masked: there must be a mask.

    A ValueError for shapes that do not fit; on the CPU an IndexError for an item that is not in 0..U-1.
    """
    if isinstance(decay, Tensor):
        steps = decay.to(codes.device, torch.float64)
    else:  # filled in on the device, so nothing waits for a copy
        steps = torch.full((), float(decay), dtype=torch.float64, device=codes.device)
    forms = f"items: integer N L; valid{'' if masked else '?'}: bool N L; decay?: floating-point N L"
    check_operands(forms, items, valid, steps if steps.dim() else None)
    check_rows(items, len(codes), "items")
    return steps


def working_dtype(table: Tensor, values: Tensor, span: float) -> torch.dtype:
    """float32, or float64 if an operand is float64 or the scores span so much that a faded codeword could still win.

    A float32 histogram forgets what is below 1e-45; with scores within SAFE_SPAN that can decide nothing.
    """
    wide = torch.float64 in (table.dtype, values.dtype) or span > SAFE_SPAN[torch.float32]
    return torch.float64 if wide else torch.float32


def flat_codes(codes: Tensor, n_codewords: int) -> Tensor:
    """Codes of all codebooks in one numbering, b * W + code: (U, B) int64."""
    return codes + torch.arange(codes.shape[1], device=codes.device) * n_codewords
