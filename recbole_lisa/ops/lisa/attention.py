r"""LISA, linear-time self attention over codeword histograms (Algorithm 1 of the paper).

    F_i = exp(-decay_i) F_{i-1} + E_i                      histogram of the keys so far     (Eq. 10)
    A_i[b, w] = F_i[b, w] exp(T[b, q_i^b, w]) / Z_i^b      attention over codewords         (Eq. 11)
    out_i = sum_b A_i[b] V_b                               V = projected codebooks

Deviation from the paper: the decay (0 there). This module checks the operands and picks the implementation: Numba
kernels on the CPU (numba_loops), Triton kernels on a GPU (triton_op), else PyTorch (torch_blocks). All of them work on
blocks of positions, keep a histogram a block for the backward pass and compute the rest again, so no (N, L, B, W)
tensor exists when the keys are a table of distinct items.
"""

import logging
from collections.abc import Callable
from functools import cache, wraps
from typing import ParamSpec

import torch
from torch import Tensor

from recbole_lisa.ops.checks import check_flags, check_operands, check_right_padding
from recbole_lisa.ops.lisa.histogram import last_histogram
from recbole_lisa.ops.lisa.numba_loops import NumbaLISA, Operands
from recbole_lisa.ops.lisa.operands import check_lisa, checked_steps, flat_codes, working_dtype
from recbole_lisa.ops.lisa.readout import SAFE_SPAN, row_span
from recbole_lisa.ops.lisa.torch_blocks import BlockedLISA, attention_weights
from recbole_lisa.ops.lisa.triton_op import TritonLISA, triton_is_installed
from recbole_lisa.ops.numba_threads import check_rows, numba_serves

logger = logging.getLogger(__name__)
Arguments = ParamSpec("Arguments")


def _uncompiled(function: Callable[Arguments, Tensor]) -> Callable[Arguments, Tensor]:
    """Let torch.compile break its graph at the call: it would unroll the loop over blocks."""

    @wraps(function)
    def call(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Tensor:
        if torch.compiler.is_compiling():
            eager: Callable[Arguments, Tensor] = torch.compiler.disable(function)  # type: ignore[no-untyped-call]  # torch's
            return eager(*args, **kwargs)
        return function(*args, **kwargs)

    return call


@_uncompiled
def lisa_attention(
    codes: Tensor,
    table: Tensor,
    values: Tensor,
    *,
    assignment: Tensor | None = None,
    decay: float | Tensor = 0.0,
    valid: Tensor | None = None,
    causal: bool = True,
    straight_through: bool = False,
) -> Tensor:
    """LISA over sequences of codes: (N, L, D) in the dtype of values.

    Differentiable in assignment, table, values and decay.

    Args:
        codes: (N, L, B) integer query codes, and hard keys when assignment is None.
        table: (B, W, W) raw scaled inner products, T[b, i, j] = (P^Q c_i)^T (P^K c_j) / sqrt(D).
        values: (B, W, D) projected codebooks.
        assignment: (N, L, B, W) soft or straight-through keys.
        decay: a float, a 0-d tensor, or (N, L) decays of each step, all at least 0; the first step's has no effect.
        valid: (N, L) bool, True = non-padding. Padding is never a key and its output is 0.
        causal: False sums the histogram over all valid positions (decay must then be 0).
        straight_through: for one-hot keys with a straight-through gradient. d A / d F = exp(T) / Z has no bound at a
            codeword that F lacks, so the gradients of assignment and decay take min(exp(T) / Z, 1): one more key
            changes A by at most 1.

    Raises:
        ValueError: on types or shapes that do not fit, a decay without causal, a flag that is neither True nor False,
            and on the CPU codes outside 0..W-1, a decay below 0 or NaN, or an assignment below 0.

    Scores that span more than 50 within a row are worked on in float64: with such scores a codeword that was last seen
    long ago can outweigh recent ones. What has faded below float64 (decay times age above 700) is forgotten.
    """
    check_lisa(codes, table, values, assignment, decay, "N L")
    n, length, n_codebooks = codes.shape
    items = torch.arange(n * length, device=codes.device).view(n, length)
    flat = None if assignment is None else assignment.flatten(0, 1)
    return lisa_attention_items(
        items,
        codes.reshape(-1, n_codebooks),
        table,
        values,
        assignment=flat,
        decay=decay,
        valid=valid,
        causal=causal,
        straight_through=straight_through,
    )


@_uncompiled
def lisa_attention_items(
    items: Tensor,
    codes: Tensor,
    table: Tensor,
    values: Tensor,
    *,
    assignment: Tensor | None = None,
    decay: float | Tensor = 0.0,
    valid: Tensor | None = None,
    causal: bool = True,
    straight_through: bool = False,
) -> Tensor:
    """LISA over sequences of distinct items: rows are gathered block by block, never for all positions at once.

    items (N, L) are integer rows of codes (U, B) and assignment (U, B, W), the queries and keys of the distinct items.
    Other arguments and the result are as in lisa_attention.

    Raises:
        ValueError: as lisa_attention.
        IndexError: on the CPU, an item outside 0..U-1.
    """
    check_flags(causal=causal, straight_through=straight_through)
    check_lisa(codes, table, values, assignment, decay)
    steps = checked_steps(items, codes, decay, valid)
    if not causal and (isinstance(decay, Tensor) or decay != 0):
        raise ValueError(f"bidirectional attention has no decay: pass decay=0.0, got {decay}")
    if not items.numel():
        return values.new_zeros(*items.shape, values.shape[-1])
    dtype, numba_does = _plan(table, values, causal=causal)
    if _triton_serves(table.device, dtype, causal=causal):
        keys = None if assignment is None else assignment.flatten(1)
        out: Tensor = TritonLISA.apply(straight_through, items, codes, keys, table, values, steps, valid)  # type: ignore[no-untyped-call]  # torch's
        return out
    if numba_does:
        starts = torch.arange(items.numel()) % items.shape[1] == 0
        steps, present = steps.flatten() if steps.dim() else steps, None if valid is None else valid.flatten()
        op = Operands(items.flatten(), starts, codes, assignment, table, values, steps, present)
        return _attend_to_rows(op, dtype, straight_through=straight_through).view(*items.shape, -1)
    with torch.autocast(items.device.type, enabled=False):
        keys = None if assignment is None else assignment.flatten(1).to(dtype)
        rows, flat_values = (x.to(dtype).flatten(0, 1) for x in (table, values))  # (B * W, W), (B * W, D)
        query = flat_codes(codes, table.shape[1])
        out = BlockedLISA.apply(causal, straight_through, items, query, keys, rows, flat_values, steps, valid)  # type: ignore[no-untyped-call]  # torch's
    return out.to(values.dtype)


@_uncompiled
def lisa_attention_non_padding(
    items: Tensor,
    codes: Tensor,
    table: Tensor,
    values: Tensor,
    *,
    assignment: Tensor | None = None,
    decay: float | Tensor = 0.0,
    valid: Tensor,
    causal: bool = True,
    straight_through: bool = False,
) -> Tensor:
    """lisa_attention_items at the M valid positions only, one sequence after the other: (M, D).

    The Numba kernels skip padding on the right; otherwise the valid positions are selected at the end. Arguments and
    errors as of lisa_attention_items.
    """
    check_flags(causal=causal, straight_through=straight_through)
    check_lisa(codes, table, values, assignment, decay)
    steps = checked_steps(items, codes, decay, valid, masked=True)
    if table.device.type == "cpu":  # on a GPU, to look at the mask would wait
        dtype, numba_does = _plan(table, values, causal=causal)
        if numba_does and bool((valid[:, 1:] <= valid[:, :-1]).all()):
            kept = valid.flatten().nonzero().squeeze(1)  # (M,)
            rows, starts = items.flatten().index_select(0, kept), kept % max(items.shape[1], 1) == 0
            steps = steps.flatten().index_select(0, kept) if steps.dim() else steps
            op = Operands(rows, starts, codes, assignment, table, values, steps, None)
            return _attend_to_rows(op, dtype, straight_through=straight_through)
    out = lisa_attention_items(
        items,
        codes,
        table,
        values,
        assignment=assignment,
        decay=decay,
        valid=valid,
        causal=causal,
        straight_through=straight_through,
    )
    return out[valid]


@_uncompiled
def lisa_attention_last(
    items: Tensor,
    codes: Tensor,
    table: Tensor,
    values: Tensor,
    *,
    assignment: Tensor | None = None,
    decay: float | Tensor = 0.0,
    valid: Tensor,
    straight_through: bool = False,
) -> Tensor:
    """The output (N, D) at each row's final valid position, 0 for a row without one; O(L B + B W D).

    One histogram a sequence. Arguments and errors as of lisa_attention_items; padding must be on the right.
    """
    check_flags(straight_through=straight_through)
    check_lisa(codes, table, values, assignment, decay)
    steps = checked_steps(items, codes, decay, valid, masked=True)
    check_right_padding(valid)
    if not items.numel():
        return values.new_zeros(len(items), values.shape[-1])
    codes = codes.long()
    if assignment is not None:
        assignment = assignment.to(working_dtype(table, values, row_span(table)))
    with torch.autocast(items.device.type, enabled=False):
        histogram = last_histogram(items, codes, table.shape[1], assignment=assignment, decay=steps, valid=valid)
        final = (valid.sum(dim=1) - 1).clamp_min(0)  # (N,)
        query = codes.index_select(0, items.gather(1, final.unsqueeze(1)).squeeze(1))  # (N, B)
        scores = _scores(table, query, histogram.dtype)
        empty = (histogram <= 0).all(dim=-1, keepdim=True)
        weights = attention_weights(histogram.masked_fill(empty, 1.0), scores, straight_through=straight_through)
        weights = weights.masked_fill(empty, 0.0)
        return (weights.flatten(1).to(values.dtype) @ values.flatten(0, 1)).to(values.dtype)


def read_histogram(histogram: Tensor, query: Tensor, table: Tensor, values: Tensor) -> Tensor:
    """Attention of one query a row over its histogram; differentiable by autograd.

    histogram (N, B, W), query (N, B) codes, table (B, W, W), values (B, W, D) -> (N, D) in the dtype of values. A
    number of the histogram that is not above 0 is no key.
    """
    forms = "histogram: floating-point N B+ W+; query: int64 N B; table: floating-point B W W"
    check_operands(f"{forms}; values: floating-point B W D", histogram, query, table, values)
    check_rows(query, table.shape[1], "query")
    scores = _scores(table, query, histogram.dtype)
    absent = histogram <= 0  # NaN is not
    logits = histogram.masked_fill(absent, 1.0).log() + scores
    weights = logits.masked_fill(absent, float("-inf")).softmax(dim=-1)
    weights = weights.masked_fill(absent.all(dim=-1, keepdim=True), 0.0)
    return (weights.flatten(1).to(values.dtype) @ values.flatten(0, 1)).to(values.dtype)


def _scores(table: Tensor, query: Tensor, dtype: torch.dtype) -> Tensor:
    """T[b, q^b] of queries (N, B), (N, B, W)."""
    return table[torch.arange(table.shape[0], device=table.device), query].to(dtype)


@cache
def _log_fallback() -> None:
    logger.warning("Triton is not installed: LISA runs on the GPU as plain PyTorch, several times slower")


def _triton_serves(device: torch.device, dtype: torch.dtype, *, causal: bool) -> bool:
    """Whether the Triton kernels do the work: on a GPU, for causal attention in float32 or narrower."""
    can_serve = device.type == "cuda" and dtype != torch.float64 and causal
    if can_serve and not triton_is_installed():
        _log_fallback()
        return False
    return can_serve


def _plan(table: Tensor, values: Tensor, *, causal: bool) -> tuple[torch.dtype, bool]:
    """The type to work in, and whether Numba kernels can: on the CPU, causal, where scores need no logarithms."""
    span = row_span(table)
    dtype = working_dtype(table, values, span)
    fits = table.device.type == "cpu" and causal and span <= SAFE_SPAN[dtype]
    return dtype, fits and numba_serves(table.to(dtype))


def _attend_to_rows(op: Operands, dtype: torch.dtype, *, straight_through: bool) -> Tensor:
    """NumbaLISA in a type, (R, D); query and assignment are still the codes (U, B) and (U, B, W)."""
    if not len(op.items):
        return op.values.new_zeros(0, op.values.shape[-1])
    with torch.autocast("cpu", enabled=False):
        query = flat_codes(op.query, op.table.shape[1])
        keys = None if op.assignment is None else op.assignment.flatten(1).to(dtype)
        table, values = op.table.to(dtype), op.values.to(dtype)
        inputs = op._replace(query=query, assignment=keys, table=table, values=values)
        out: Tensor = NumbaLISA.apply(straight_through, *inputs)  # type: ignore[no-untyped-call]  # torch's Function carries no types
    return out.to(op.values.dtype)
