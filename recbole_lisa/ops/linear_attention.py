r"""Causal linear attention with positive features (Katharopoulos et al., 2020), in chunks.

    out_i = phi(q_i)^T S_i / phi(q_i)^T z_i,    S_i = sum_{j<=i} phi(k_j) v_j^T,    z_i = sum_{j<=i} phi(k_j)

Inside a chunk of C positions the product runs over a masked (C, C) matrix; before it lies one (D, D) state a chunk.
"""

import torch
from torch import Tensor
from torch.nn.functional import pad

from recbole_lisa.ops.checks import check_operands, check_range
from recbole_lisa.ops.recurrences import sums_before

CHUNK = 64
"""Positions a chunk: C^2 D work inside against D^2 for each state."""


def linear_attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Causal linear attention of positive query features and values, (N, L, D); 0 where no key counts yet.

    The key features (N, L, D) are not negative, and 0 where a key must not count. Signs are checked on the CPU.
    """
    check_operands("query: N L D; key: N L D; value: N L D", query, key, value)
    check_range("query", query, 0)
    check_range("key", key, 0)
    n, length, width = query.shape
    n_chunks = -(-length // CHUNK)
    extra = n_chunks * CHUNK - length
    q, k, v = (pad(x, (0, 0, 0, extra)).view(n, n_chunks, CHUNK, width) for x in (query, key, value))  # (N, K, C, D)
    state = sums_before(k.transpose(2, 3) @ v)  # (N, K, D, D)
    mass = sums_before(k.sum(dim=2)).unsqueeze(2) + k.cumsum(dim=2)  # (N, K, C, D)
    inside = (q @ k.transpose(2, 3)).tril()  # (N, K, C, C)
    out = q @ state + inside @ v  # (N, K, C, D)
    total = (q * mass).sum(dim=-1, keepdim=True)
    attended: Tensor = out / total.clamp_min(torch.finfo(total.dtype).tiny)
    return attended.reshape(n, n_chunks * CHUNK, width)[:, :length]
