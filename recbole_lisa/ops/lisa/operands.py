"""Checks of the operands of LISA's functions, all before any kernel runs, and the type that they work in."""

import torch
from torch import Tensor

from recbole_lisa.ops.lisa.readout import SAFE_SPAN
from recbole_lisa.ops.numba_threads import INTEGERS, check_rows


def check_operands(
    codes: Tensor, table: Tensor, values: Tensor, assignment: Tensor | None, decay: float | Tensor, *, n_dims: int
) -> None:
    """Refuse operands of lisa_attention (n_dims=3) or lisa_attention_items (n_dims=2).

    Raises:
        ValueError: types or shapes that do not fit; on the CPU also codes or decays out of range.
    """
    if codes.dtype not in INTEGERS:
        raise ValueError(f"codes must be integers, got {codes.dtype}")
    if codes.dim() != n_dims:
        raise ValueError(f"codes must have {n_dims} dimensions, the last over codebooks, got {tuple(codes.shape)}")
    if table.dim() != 3 or table.shape[1] != table.shape[2]:
        raise ValueError(f"table must be (B, W, W), got {tuple(table.shape)}")
    if values.dim() != 3 or values.shape[:2] != table.shape[:2]:
        raise ValueError(f"values must be (B, W, D) = {tuple(table.shape[:2])} + (D,), got {tuple(values.shape)}")
    if not table.numel():
        raise ValueError(f"table must have at least one codebook and one codeword, got {tuple(table.shape)}")
    if codes.shape[-1] != table.shape[0]:
        raise ValueError(f"codes have {codes.shape[-1]} codebooks, table has {table.shape[0]}")
    if assignment is not None and tuple(assignment.shape) != (*codes.shape, table.shape[1]):
        raise ValueError(
            f"assignment must be {(*codes.shape, table.shape[1])} (codes' shape and W), got {tuple(assignment.shape)}"
        )
    for name, x in (("table", table), ("values", values), ("assignment", assignment)):
        if x is not None and not x.dtype.is_floating_point:
            raise ValueError(f"{name} must be floating-point numbers, got {x.dtype}")
    _check_numbers(codes, decay, table.shape[1])


def _check_numbers(codes: Tensor, decay: float | Tensor, n_codewords: int) -> None:
    """Refuse numbers out of range, in tensors only on the CPU: on a GPU this would wait."""
    smallest = decay
    if isinstance(decay, Tensor):
        smallest = float(decay.detach().min()) if decay.device.type == "cpu" and decay.numel() else 0.0
    if not smallest >= 0:  # NaN is refused, too
        raise ValueError(f"decay must be at least 0, got {smallest}")
    if codes.device.type == "cpu" and codes.numel():
        low, high = (int(x) for x in codes.aminmax())
        if low < 0 or high >= n_codewords:
            raise ValueError(f"codes must lie in 0..{n_codewords - 1} (W - 1), got {low if low < 0 else high}")


def check_sequences(items: Tensor, n_items: int, decay: Tensor, valid: Tensor | None) -> None:
    """Refuse items that are not (N, L) rows of n_items codes, and decays or a mask of another shape.

    Raises:
        ValueError: types or shapes that do not fit.
        IndexError: on the CPU, an item that is not in 0..n_items-1.
    """
    if items.dim() != 2:
        raise ValueError(f"items must be (N, L), got {tuple(items.shape)}")
    if decay.dim() not in (0, 2) or (decay.dim() == 2 and decay.shape != items.shape):
        raise ValueError(f"decay must be a number or (N, L) = {tuple(items.shape)}, got {tuple(decay.shape)}")
    if valid is not None and (valid.shape != items.shape or valid.dtype != torch.bool):
        raise ValueError(f"valid must be bool (N, L) = {tuple(items.shape)}, got {valid.dtype} {tuple(valid.shape)}")
    check_rows(items, n_items, "items")


def check_right_padding(valid: Tensor) -> None:
    """Refuse a mask (N, L) with padding before an item; on the CPU only, on a GPU this would wait."""
    checked = valid.device.type == "cpu" and not torch.compiler.is_compiling()
    if checked and not bool((valid[:, 1:] <= valid[:, :-1]).all()):
        raise ValueError("valid has padding before an item: padding must be on the right")


def decay_of_steps(decay: float | Tensor, device: torch.device) -> Tensor:
    """The decay as float64, 0-d or (N, L). A number is filled in on the device, so nothing waits for a copy."""
    if isinstance(decay, Tensor):
        return decay.to(device, torch.float64)
    return torch.full((), float(decay), dtype=torch.float64, device=device)


def working_dtype(table: Tensor, values: Tensor, span: float) -> torch.dtype:
    """float32, or float64 if an operand is float64 or the scores span so much that a faded codeword could still win.

    A float32 histogram forgets what is below 1e-45; with scores within SAFE_SPAN that can decide nothing.
    """
    wide = torch.float64 in (table.dtype, values.dtype) or span > SAFE_SPAN[torch.float32]
    return torch.float64 if wide else torch.float32


def flat_codes(codes: Tensor, n_codewords: int) -> Tensor:
    """Codes of all codebooks in one numbering, b * W + code: (U, B) int64."""
    return codes + torch.arange(codes.shape[1], device=codes.device) * n_codewords
