r"""Cross entropy over a whole catalogue without the (M, V) logits.

Of items that are sums of codewords, the scores of positions m and their gradients need no item vectors:

    s[v, m] = h_m^T y_v = sum_b t_b[code_v^b, m]        t_b = C_b h_m
    d t_b[w, m] = sum of d s[v, m] over the items v with code_v^b = w

A few positions at a time, items in blocks that stay in the cache. d s is exp(s - r) / sum_v exp(s - r), less 1 at the
target. Any r serves that leaves exp finite: it starts at the target's score, and where a block has a score above
r + MARGIN, r rises and the sums so far shrink by the same factor. So each block is computed once.
"""

from collections.abc import Sequence
from functools import reduce
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import embedding_bag

from recbole_lisa.ops.checks import check_operands, differentiable_once
from recbole_lisa.ops.codeword_scores import lookup_tables, sum_of_rows
from recbole_lisa.ops.numba_threads import check_rows, cut_rows

BLOCK_ELEMENTS = 2**22
"""Logits held at once: 16 MB in float32."""
BLOCK = {"cpu": (2**6, 2**11), "cuda": (2**11, 2**15)}
"""Positions, and items, whose scores exist at once: 512 KB in float32, on a GPU 256 MB."""
MARGIN = 30.0


class _CatalogueCrossEntropy(torch.autograd.Function):
    """The gradients of a sum are known as soon as a block's logits are, so forward takes them and keeps no logits."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, table: Tensor, target: Tensor, excluded: Tensor | None, group: Tensor | None
    ) -> Tensor:
        d_hidden = torch.empty_like(hidden) if ctx.needs_input_grad[0] else None
        d_table = torch.zeros_like(table) if ctx.needs_input_grad[1] else None
        total = hidden.new_zeros((), dtype=torch.promote_types(hidden.dtype, torch.float32))
        for block in cut_rows(len(hidden), len(table), BLOCK_ELEMENTS):
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
    @differentiable_once
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return *(None if d is None else d * grad.to(d.dtype) for d in ctx.saved_tensors), None, None, None


def check_left_out(target: Tensor, n_items: int, excluded: Tensor | None, group: Tensor | None) -> None:
    """Check target, excluded and group of catalogue_cross_entropy."""
    of_group = "group?" if excluded is None else "group"
    check_operands(f"target: int64 M; excluded?: int64 N K; {of_group}: int64 M", target, excluded, group)
    check_rows(target, n_items, "target")
    if excluded is not None and group is not None:
        check_rows(excluded + 1, n_items + 1, "excluded + 1")
        check_rows(group, len(excluded), "group")


def catalogue_cross_entropy(
    hidden: Tensor, table: Tensor, target: Tensor, *, excluded: Tensor | None = None, group: Tensor | None = None
) -> Tensor:
    """Sum over m of logsumexp_v(h_m^T t_v) - h_m^T t_{target_m}: a scalar in float32 or wider.

    Takes hidden (M, D), table (V, D) and target (M,) int64 rows of the table. excluded (N, K) int64 are rows that the
    sums over v of a group leave out, all but the target itself, -1 for none; group (M,) int64 is the group of each m.
    Memory is O(M D + V D + BLOCK_ELEMENTS).
    """
    check_operands("hidden: floating-point M D; table: floating-point V+ D; target: int64 M", hidden, table, target)
    check_left_out(target, len(table), excluded, group)
    with torch.autocast(hidden.device.type, enabled=False):
        total: Tensor = _CatalogueCrossEntropy.apply(  # type: ignore[no-untyped-call]  # torch's Function is untyped
            hidden, table.to(hidden.dtype), target, excluded, group
        )
    return total


class _CodedCrossEntropy(torch.autograd.Function):
    """The gradients of a sum are known with a block's scores, so forward takes them and keeps no scores."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, target: Tensor, left_out: Any, codes: list[Tensor], *words: Tensor) -> Tensor:
        d_hidden, d_words, total = torch.zeros_like(hidden), [torch.zeros_like(x) for x in words], hidden.new_zeros(())
        n_positions, n_items = BLOCK["cpu" if hidden.device.type == "cpu" else "cuda"]
        blocks = [
            [(part, _by_codeword(part, x.shape[1])) for part in torch.split(c, n_items)]
            for c, x in zip(codes, words, strict=True)
        ]
        for rows in cut_rows(len(hidden), 1, n_positions):
            out = left_out and _pairs(left_out[0][left_out[1][rows]], target[rows], len(codes[0]), n_items)
            tables = [lookup_tables(hidden[rows], x) for x in words]  # (B, W, m) each
            d_tables = [torch.zeros_like(table) for table in tables] if any(ctx.needs_input_grad) else []
            total += _sum_over_items(tables, d_tables, codes, target[rows], out, list(zip(*blocks, strict=True)))
            for x, d_x, d_table in zip(words, d_words, d_tables, strict=False):
                d_hidden[rows] += d_table.flatten(0, 1).t() @ x.flatten(0, 1)
                d_x += d_table @ hidden[rows]
        ctx.save_for_backward(d_hidden, *d_words)
        return total

    @staticmethod
    @differentiable_once
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        d_hidden, *d_words = (d * grad for d in ctx.saved_tensors)
        return d_hidden, None, None, None, *d_words


def _pairs(excluded: Tensor, target: Tensor, n_items: int, block: int) -> list[tuple[Tensor, Tensor]]:
    """Excluded rows (m, K), -1 for none and without the target, as rows within each block of items and positions."""
    position, column = ((excluded >= 0) & (excluded != target.unsqueeze(1))).nonzero().unbind(1)
    items, order = excluded[position, column].sort()
    ends = torch.searchsorted(items, torch.arange(block, n_items + block, block, device=items.device)).tolist()
    parts = zip([0, *ends], ends, strict=False)
    return [(items[first:end] - i * block, position[order[first:end]]) for i, (first, end) in enumerate(parts)]


def _by_codeword(codes: Tensor, n_codewords: int) -> tuple[Tensor, Tensor]:
    """Items by codeword, of all codebooks in turn, and where each codeword's items start (B W,), of codes (m, B)."""
    first_rows = torch.arange(codes.shape[1], dtype=torch.int32, device=codes.device) * n_codewords
    rows, order = (codes + first_rows).t().flatten().sort()
    starts = torch.searchsorted(rows, torch.arange(codes.shape[1] * n_codewords, device=rows.device), out_int32=True)
    return (order % len(codes)).int(), starts


def _sum_over_items(
    tables: list[Tensor], d_tables: list[Tensor], codes: list[Tensor], target: Tensor, out: Any, blocks: list[Any]
) -> Tensor:
    """Sum of the losses of m positions with tables (B, W, m); sets d_tables, which are 0 before."""
    positions = torch.arange(len(target), device=target.device)
    of_target = [(torch.arange(x.shape[1], device=x.device)[:, None], x[target].t().long(), positions) for x in codes]
    own = reduce(torch.add, (table[at].sum(dim=0) for table, at in zip(tables, of_target, strict=True)))  # (m,)
    reference, mass = own, torch.zeros_like(own)
    for i, parts in enumerate(blocks):
        scores = reduce(torch.add, (sum_of_rows(part, table) for (part, _), table in zip(parts, tables, strict=True)))
        if out is not None:
            scores[out[i]] = -torch.inf
        peak = scores.amax(dim=0)
        if (peak > reference + MARGIN).any():
            raised = torch.maximum(peak, reference)
            shrink = (reference - raised).exp_()
            mass, reference = mass * shrink, raised
            for d_table in d_tables:
                d_table *= shrink
        power = scores.sub_(reference).exp_()
        mass += power.sum(dim=0)
        for (_, (items, first)), d_table in zip(parts, d_tables, strict=False):
            d_table += embedding_bag(items, power, first, mode="sum").view_as(d_table)
    for at, d_table in zip(of_target, d_tables, strict=False):
        d_table /= mass
        d_table[at] -= 1
    return (reference - own + mass.log()).sum()


def coded_cross_entropy(
    hidden: Tensor,
    items: Sequence[tuple[Tensor, Tensor]],
    target: Tensor,
    *,
    excluded: Tensor | None = None,
    group: Tensor | None = None,
) -> Tensor:
    """As catalogue_cross_entropy, of items that are sums of codewords: a scalar in float32 or wider.

    Each of `items` is codes (V, B) of any integer type and codewords (B, W, D); an item is the sum over all. hidden
    (M, D), target, excluded and group are as for catalogue_cross_entropy. Memory is O(M D + B W D), and 4 B bytes an
    item for the order by codeword.
    """
    if not items or not all(isinstance(one, (tuple, list)) and len(one) == 2 for one in items):
        raise ValueError("items must have one or more pairs of codes (V, B) and codewords (B, W, D)")
    for number, (codes, words) in enumerate(items):
        forms = "hidden: floating-point M D; codewords: floating-point B W D; codes: integer V+ B; target: int64 M"
        check_operands(forms, hidden, words, codes, target)
        check_rows(codes, words.shape[1], "codes")
        if len(codes) != len(items[0][0]):
            raise ValueError(f"codes of pair {number} have {len(codes)} items, those of pair 0 {len(items[0][0])}")
        check_left_out(target, len(codes), excluded, group)
    left_out = None if excluded is None else (excluded, group)
    dtype = torch.promote_types(hidden.dtype, torch.promote_types(items[0][1].dtype, torch.float32))
    operands = hidden.to(dtype), target, left_out, [codes for codes, _ in items], *(x.to(dtype) for _, x in items)
    with torch.autocast(hidden.device.type, enabled=False):
        total: Tensor = _CodedCrossEntropy.apply(*operands)  # type: ignore[no-untyped-call]  # torch's Function is untyped
    return total
