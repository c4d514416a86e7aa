r"""Cross entropy over a whole catalogue of items that are sums of codewords, without their vectors.

    s[v, m] = h_m^T y_v = sum_b t_b[code_v^b, m]        t_b = C_b h_m
    d t_b[w, m] = sum of d s[v, m] over the items v with code_v^b = w

A few positions m at a time, items in blocks that stay in the cache. d s is exp(s - r) / sum_v exp(s - r), less 1 at the
target. Any r serves that leaves exp finite: it starts at the target's score, and where a block has a score above
r + MARGIN, r rises and the sums so far shrink by the same factor. So each block is computed once.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from recbole_lisa.ops.checks import check_operands
from recbole_lisa.ops.codeword_scores import add_rows_to_tables, lookup_tables, sum_of_rows
from recbole_lisa.ops.numba_threads import check_rows

BLOCK = {"cpu": (2**6, 2**11), "cuda": (2**11, 2**15)}
"""Positions, and items, whose scores exist at once: 512 KB in float32, on a GPU 256 MB."""
MARGIN = 30.0


class _CodedCrossEntropy(torch.autograd.Function):
    """The gradients of a sum are known with a block's scores, so forward takes them and keeps no scores."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        codewords: Tensor,
        codes: Tensor,
        target: Tensor,
        excluded: Tensor | None,
        group: Tensor | None,
    ) -> Tensor:
        d_hidden, d_codewords = torch.zeros_like(hidden), torch.zeros_like(codewords)
        total = hidden.new_zeros(())
        n_positions, n_items = BLOCK["cpu" if hidden.device.type == "cpu" else "cuda"]
        for first in range(0, len(hidden), n_positions):
            rows = slice(first, first + n_positions)
            tables = lookup_tables(hidden[rows], codewords)  # (B, W, m)
            d_tables = torch.zeros_like(tables) if any(ctx.needs_input_grad) else None
            out = None
            if excluded is not None and group is not None:
                out = _pairs(excluded.index_select(0, group[rows]), target[rows], len(codes), n_items)
            total += _sum_over_items(tables, d_tables, codes, target[rows], out, n_items)
            if d_tables is not None:
                d_hidden[rows] = d_tables.flatten(0, 1).t() @ codewords.flatten(0, 1)
                d_codewords += d_tables @ hidden[rows]
        ctx.save_for_backward(d_hidden, d_codewords)
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return *(d * grad for d in ctx.saved_tensors), None, None, None, None


def _pairs(excluded: Tensor, target: Tensor, n_items: int, block: int) -> list[tuple[Tensor, Tensor]]:
    """Excluded rows (m, K), -1 for none and without the target, as rows within each block of items and positions."""
    position, column = ((excluded >= 0) & (excluded != target.unsqueeze(1))).nonzero().unbind(1)
    items, order = excluded[position, column].sort()
    ends = torch.searchsorted(items, torch.arange(block, n_items + block, block, device=items.device)).tolist()
    parts = zip([0, *ends], ends, strict=False)
    return [(items[first:end] - i * block, position[order[first:end]]) for i, (first, end) in enumerate(parts)]


def _sum_over_items(
    tables: Tensor, d_tables: Tensor | None, codes: Tensor, target: Tensor, out: Any, block: int
) -> Tensor:
    """Sum of the losses of m positions with tables (B, W, m); sets d_tables, which are 0 before."""
    books, positions = (torch.arange(n, device=codes.device) for n in (len(tables), len(target)))
    of_target = books.unsqueeze(1), codes.index_select(0, target).t().long(), positions  # entries of the tables, (B, m)
    own = tables[of_target].sum(dim=0)  # (m,)
    reference, mass = own, torch.zeros_like(own)
    for i, part in enumerate(torch.split(codes, block)):
        scores = sum_of_rows(part, tables)  # (block, m)
        if out is not None:
            scores[out[i]] = -torch.inf
        peak = scores.amax(dim=0)
        if (peak > reference + MARGIN).any():
            raised = torch.maximum(peak, reference)
            shrink = (reference - raised).exp_()
            mass, reference = mass * shrink, raised
            if d_tables is not None:
                d_tables *= shrink
        power = scores.sub_(reference).exp_()
        mass += power.sum(dim=0)
        if d_tables is not None:
            add_rows_to_tables(part, power, d_tables)
    if d_tables is not None:
        d_tables /= mass
        d_tables[of_target] -= 1
    return (reference - own + mass.log()).sum()


def coded_cross_entropy(
    hidden: Tensor,
    codewords: Tensor,
    codes: Tensor,
    target: Tensor,
    *,
    excluded: Tensor | None = None,
    group: Tensor | None = None,
) -> Tensor:
    """As catalogue_cross_entropy, of items that are sums of codewords: a scalar in float32 or wider.

    Takes hidden (M, D), codewords (B, W, D), codes (V, B) of any integer type and target (M,) int64 rows of the codes.
    excluded (N, K) int64 are rows that the sums over v of a group leave out, all but the target itself, -1 for none;
    group (M,) int64 is the group of each m. Memory is O(M D + B W D) beside the codes.
    """
    forms = "hidden: floating-point M D; codewords: floating-point B W D; codes: integer V+ B; target: int64 M"
    check_operands(f"{forms}; group?: int64 M", hidden, codewords, codes, target, group)
    check_rows(target, len(codes), "target")
    if excluded is not None:
        check_operands("excluded: int64 N K; group: int64 M", excluded, group)
        check_rows(excluded.clamp_min(0), len(codes), "excluded")
        if group is not None:
            check_rows(group, len(excluded), "group")
    dtype = torch.promote_types(hidden.dtype, torch.promote_types(codewords.dtype, torch.float32))
    with torch.autocast(hidden.device.type, enabled=False):
        total: Tensor = _CodedCrossEntropy.apply(  # type: ignore[no-untyped-call]  # torch's Function is untyped
            hidden.to(dtype), codewords.to(dtype), codes, target, excluded, group
        )
    return total
