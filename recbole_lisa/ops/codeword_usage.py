"""How evenly a quantiser spreads items over its codewords."""

from typing import NamedTuple

import torch
from torch import Tensor

from recbole_lisa.ops.checks import check_operands, check_sizes
from recbole_lisa.ops.numba_threads import check_rows


class CodewordUsage(NamedTuple):
    """Of each of B codebooks: used (B,) int64 codewords with an item, and perplexity (B,) float64 in 1..W.

    Perplexity is exp(-sum_w p_w log p_w) with p_w the fraction of items with codeword w: the number of codewords that,
    used equally, would have the same entropy.
    """

    used: Tensor
    perplexity: Tensor


def codeword_usage(codes: Tensor, n_codewords: int) -> CodewordUsage:
    """Count the codewords of codes (V, B) integers, V at least 1, in 0..n_codewords-1."""
    check_operands("codes: integer V+ B+", codes)
    check_sizes(n_codewords=n_codewords)
    check_rows(codes, n_codewords, "codes")
    n_codebooks, n_codewords = codes.shape[1], int(codes.max()) + 1  # later codewords have no item
    flat = codes.long() + torch.arange(n_codebooks, device=codes.device) * n_codewords
    counts = torch.bincount(flat.flatten(), minlength=n_codebooks * n_codewords).view(n_codebooks, n_codewords)
    fraction = counts.double() / len(codes)
    return CodewordUsage((counts > 0).sum(dim=1), torch.special.entr(fraction).sum(dim=1).exp())
