r"""Scores against items that are sums of codewords, without their vectors.

    h^T y_v = sum_b h^T C_b[code_v^b] = sum_b t_b[code_v^b]        t_b = C_b h, computed once a query

B look-ups and additions an item replace D multiplications. For one query a look-up is a number, summed by a Numba
kernel. For N queries a look-up is a row of N numbers. Rebuilding the vectors would cost B D additions an item and then
N D multiplications, more than B N additions at any N as long as B <= D.
"""

import torch
from torch import Tensor

from recbole_lisa.ops.checks import check_operands
from recbole_lisa.ops.numba_threads import arrays, check_rows, numba_serves, writable


def lookup_tables(hidden: Tensor, codewords: Tensor) -> Tensor:
    """Compute t_b = C_b h for every query: hidden (N, D), codewords (B, W, D) -> (B, W, N), contiguous."""
    check_operands("codewords: B W D; hidden: N D", codewords, hidden)
    return codewords @ hidden.t()


def sum_of_rows(codes: Tensor, tables: Tensor) -> Tensor:
    """Compute sum_b tables[b, code^b] for codes (m, B) of any integer type, in 0..W-1.

    From the tables (B, W, N) of N queries these are scores (m, N), from codewords (B, W, D) vectors (m, D).
    """
    check_operands("tables: floating-point B+ W N; codes: integer m B", tables, codes)
    n_codebooks, n_codewords, _ = tables.shape
    check_rows(codes, n_codewords, "codes")
    first_rows = torch.arange(n_codebooks, dtype=torch.int32, device=codes.device) * n_codewords
    return torch.nn.functional.embedding_bag(codes + first_rows, tables.flatten(0, 1), mode="sum")


def scores_of_one(codes: Tensor, tables: Tensor) -> Tensor:
    """Compute sum_b tables[b, code^b] for one query: codes (m, B) integers, tables (B, W) -> (m,).

    By a Numba kernel on the CPU, elsewhere by sum_of_rows.

    Raises:
        ValueError: the shapes do not fit, or the codes are not integers.
        IndexError: a code is not in 0..W-1.
    """
    check_operands("tables: floating-point B+ W; codes: integer m B", tables, codes)
    check_rows(codes, tables.shape[1], "codes")
    if not (codes.numel() and numba_serves(tables)):
        return sum_of_rows(codes, tables.unsqueeze(2)).squeeze(1)
    from recbole_lisa.ops.codeword_kernels import LookUp, look_up

    scores = tables.new_zeros(len(codes))
    look_up(len(codes), LookUp(**arrays(codes=codes, tables=tables), **writable(scores=scores)))
    return scores
