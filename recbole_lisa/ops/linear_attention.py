r"""Causal linear attention with positive features (Katharopoulos et al., 2020), in chunks.

    out_i = phi(q_i)^T S_i / phi(q_i)^T z_i,    S_i = sum_{j<=i} phi(k_j) v_j^T,    z_i = sum_{j<=i} phi(k_j)

Inside a chunk of C positions the product runs over a masked (C, C) matrix; before it lies one (D, D) state a chunk.
"""

import torch
from torch import Tensor
from torch.nn.functional import pad

from recbole_lisa.ops.checks import check_operands, check_range
from recbole_lisa.ops.recurrences import chunks, sums_before

CHUNK = 128
"""Most positions of a chunk: C D work a position inside against D^2 for the state; one chunk needs no state."""


def linear_attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Causal linear attention of positive query features and values, (N, L, D); 0 where no key counts yet.

    The key features (N, L, D) are not negative, and 0 where a key must not count. Signs are checked on the CPU.
    """
    check_operands("query: N L D; key: N L D; value: N L D", query, key, value)
    check_range("query", query, 0)
    check_range("key", key, 0)
    n, length, width = query.shape
    n_chunks, chunk = chunks(length, CHUNK)
    shape, extra = (n, n_chunks, chunk, width), n_chunks * chunk - length
    q, k, v = (pad(x, (0, 0, 0, extra)).view(shape) for x in (query, key, value))  # (N, K, C, D)
    inside = (q @ k.transpose(2, 3)).tril()  # (N, K, C, C)
    out, total = inside @ v, inside.sum(dim=-1, keepdim=True)  # (N, K, C, D), (N, K, C, 1)
    if n_chunks > 1:
        state = sums_before(k.transpose(2, 3) @ v)  # (N, K, D, D)
        mass = sums_before(k.sum(dim=2)).unsqueeze(-1)  # (N, K, D, 1)
        out, total = out + q @ state, total + q @ mass
    attended: Tensor = out / total.clamp_min(torch.finfo(total.dtype).tiny)
    return attended.reshape(n, n_chunks * chunk, width)[:, :length]
