r"""Scores against items that are sums of codewords, without their vectors.

    h^T y_v = sum_b h^T C_b[code_v^b] = sum_b t_b[code_v^b]        t_b = C_b h, worked out once a query

B look-ups and additions an item take the place of D multiplications. For one query the look-ups are single numbers,
and two neighbouring codes of a byte each are read as one of 16 bits from a table of sums, which halves them. For N
queries a look-up is a row of N numbers, in an order that suits the processor's lanes. Rebuilding the vectors costs B D
additions an item and then N D multiplications, more than B N additions at any N as long as B <= D.
"""

import torch
from torch import Tensor

PAIRED = 2**16
"""Entries of a table over two codes of a byte each."""


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


def pair_columns(codes: Tensor) -> Tensor:
    """Codes of a byte each, two by two, a row for each pair of codebooks.

    Args:
        codes: (V, B) uint8.

    Returns:
        (ceil(B / 2), V) int16: codes of codebook 2 p in the low byte and of 2 p + 1, if any, in the high one.
    """
    even = torch.nn.functional.pad(codes, (0, codes.shape[1] % 2))
    low, high = even[:, 0::2].to(torch.int32), even[:, 1::2].to(torch.int32)
    return (low + high * 256).to(torch.int16).t().contiguous()


def pair_tables(tables: Tensor) -> Tensor:
    """Sums of two neighbouring tables at every pair of codes.

    Args:
        tables: (B, W) of one query, W at most 256.

    Returns:
        (ceil(B / 2), 65536): entry [p, i + 256 j] is t_{2p}[i] + t_{2p+1}[j].
    """
    n_codebooks, n_codewords = tables.shape
    padded = torch.nn.functional.pad(tables, (0, 256 - n_codewords, 0, n_codebooks % 2))
    return (padded[0::2].unsqueeze(1) + padded[1::2].unsqueeze(2)).flatten(1)


def scores_of_one(columns: Tensor, tables: Tensor) -> Tensor:
    """Scores of items for one query.

    Args:
        columns: (ceil(B / 2), m) int16 from pair_columns.
        tables: (ceil(B / 2), 65536) from pair_tables.

    Returns:
        (m,).
    """
    rows = columns.to(torch.int32).bitwise_and_(PAIRED - 1)
    total = tables[0].index_select(0, rows[0])
    for table, row in zip(tables[1:], rows[1:], strict=True):
        total += table.index_select(0, row)
    return total
