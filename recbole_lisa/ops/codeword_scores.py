r"""Scores against items that are sums of codewords, without their vectors.

    h^T y_v = sum_b h^T C_b[code_v^b] = sum_b t_b[code_v^b]        t_b = C_b h, worked out once a query

B look-ups and additions an item take the place of D multiplications. For one query the look-ups are single numbers,
summed by compiled loops. For N queries a look-up is a row of N numbers, in an order that suits the
processor's lanes. Rebuilding the vectors costs B D additions an item and then N D multiplications, more than B N
additions at any N as long as B <= D.
"""

import torch
from torch import Tensor

from recbole_lisa.ops.numba_threads import arrays, check_rows, loops_serve, share, targets


def lookup_tables(hidden: Tensor, codewords: Tensor) -> Tensor:
    """t_b = C_b h for every query.

    Args:
        hidden: (N, D).
        codewords: (B, W, D).

    Returns:
        (B, W, N), contiguous.
    """
    return codewords @ hidden.t()


def sum_of_rows(codes: Tensor, tables: Tensor) -> Tensor:
    """sum_b tables[b, code^b] for many items: their scores for N queries, or their vectors from codewords.

    Args:
        codes: (m, B) integers of any type.
        tables: (B, W, N) from lookup_tables, or codewords (B, W, D).

    Returns:
        (m, N), or (m, D).
    """
    n_codebooks, n_codewords, _ = tables.shape
    first_rows = torch.arange(n_codebooks, dtype=torch.int32, device=codes.device) * n_codewords
    return torch.nn.functional.embedding_bag(codes + first_rows, tables.flatten(0, 1), mode="sum")


def scores_of_one(codes: Tensor, tables: Tensor) -> Tensor:
    """sum_b tables[b, code^b] for one query.

    Args:
        codes: (m, B) integers of any type.
        tables: (B, W).

    Returns:
        (m,). Compiled loops do the work on the CPU; elsewhere, or without Numba, sum_of_rows.

    Raises:
        IndexError: a code that is not below W.
    """
    if not (codes.numel() and loops_serve(tables)):
        return sum_of_rows(codes, tables.unsqueeze(2)).squeeze(1)
    from recbole_lisa.ops.numba_threads.codewords import look_up, look_up_in_parts

    if torch.iinfo(codes.dtype).max >= tables.shape[1]:
        check_rows(codes, tables.shape[1])
    scores = tables.new_zeros(len(codes))
    share(look_up, look_up_in_parts, len(codes), *arrays(codes, tables), *targets(scores))
    return scores
