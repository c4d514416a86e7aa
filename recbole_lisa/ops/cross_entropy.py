"""Cross entropy over a whole catalogue without the (M, V) logits."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from recbole_lisa.ops.checks import check_operands
from recbole_lisa.ops.numba_threads import check_rows

BLOCK_ELEMENTS = 2**22
"""Logits held at once: 16 MB in float32."""


class _CatalogueCrossEntropy(torch.autograd.Function):
    """The gradients of a sum are known as soon as a block's logits are, so forward takes them and keeps no logits."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, table: Tensor, target: Tensor, excluded: Tensor | None, group: Tensor | None
    ) -> Tensor:
        d_hidden = torch.empty_like(hidden) if ctx.needs_input_grad[0] else None
        d_table = torch.zeros_like(table) if ctx.needs_input_grad[1] else None
        total = hidden.new_zeros((), dtype=torch.promote_types(hidden.dtype, torch.float32))
        rows = max(BLOCK_ELEMENTS // table.shape[0], 1)
        for first in range(0, hidden.shape[0], rows):
            block = slice(first, first + rows)
            column = target[block].unsqueeze(1)  # (rows, 1)
            logits = (hidden[block] @ table.t()).to(total.dtype)  # (rows, V)
            if excluded is not None and group is not None:
                own, out = logits.gather(1, column), excluded.index_select(0, group[block])  # (rows, 1), (rows, K)
                logits.scatter_(1, torch.where(out < 0, column, out), -torch.inf).scatter_(1, column, own)
            peak = logits.amax(dim=1, keepdim=True)
            total += (peak - logits.gather(1, column)).sum()
            probability = logits.sub_(peak).exp_()
            mass = probability.sum(dim=1, keepdim=True)
            total += mass.log().sum()
            if not (ctx.needs_input_grad[0] or ctx.needs_input_grad[1]):
                continue
            d_logits = probability.div_(mass)
            d_logits.scatter_add_(1, column, d_logits.new_full((), -1.0).expand_as(column))
            d_logits = d_logits.to(hidden.dtype)
            if d_hidden is not None:
                torch.mm(d_logits, table, out=d_hidden[block])
            if d_table is not None:
                d_table.addmm_(d_logits.t(), hidden[block])
        ctx.save_for_backward(d_hidden, d_table)
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return *(None if d is None else d * grad.to(d.dtype) for d in ctx.saved_tensors), None, None, None


def catalogue_cross_entropy(
    hidden: Tensor, table: Tensor, target: Tensor, *, excluded: Tensor | None = None, group: Tensor | None = None
) -> Tensor:
    """Sum over m of logsumexp_v(h_m^T t_v) - h_m^T t_{target_m}: a scalar in float32 or wider.

    Takes hidden (M, D), table (V, D) and target (M,) int64 rows of the table. excluded (N, K) int64 are rows that the
    sums over v of a group leave out, all but the target itself, -1 for none; group (M,) int64 is the group of each m.
    Memory is O(M D + V D + BLOCK_ELEMENTS).
    """
    forms = "hidden: floating-point M D; table: floating-point V+ D; target: int64 M; group?: int64 M"
    check_operands(forms, hidden, table, target, group)
    check_rows(target, len(table), "target")
    if excluded is not None:
        check_operands("excluded: int64 N K; group: int64 M", excluded, group)
        check_rows(excluded.clamp_min(0), len(table), "excluded")
        if group is not None:
            check_rows(group, len(excluded), "group")
    with torch.autocast(hidden.device.type, enabled=False):
        total: Tensor = _CatalogueCrossEntropy.apply(  # type: ignore[no-untyped-call]  # torch's Function is untyped
            hidden, table.to(hidden.dtype), target, excluded, group
        )
    return total
