r"""LISA with codewords as keys and exact values: softmax attention over quantised keys, a block of steps at a time.

S_i[b, w] = exp(-decay_i) S_{i-1}[b, w] + E_i[b, w] (v_i^b, 1)      a sum of values and a count a codeword
out_i^b = sum_w exp(T[b, q_i^b, w]) S_i[b, w], its values divided by its count
"""

import torch
from torch import Tensor

from recbole_lisa.ops.lisa.histogram import MAX_DECAY

BLOCK_STEPS = 32


def exact_values_attention(
    scores: Tensor, keys: Tensor, values: Tensor, decay: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """O(L B (W + S) D / B) time for blocks of S steps; only gradients keep more than one block.

    scores (N, L, B, W) is exp(T) of each query, up to a factor a query and codebook; keys (N, L, B, W) is 0 at padding;
    values (N, L, B, E), E = D / B; decay (N or 1, L, B or 1) float64 is at least 0; state (N, B, W, E + 1) is S before
    the first step. Returns (N, L, B, E), 0 where no key counts yet, and S after the last step.
    """
    values = torch.cat([values, torch.ones_like(values[..., :1])], dim=-1)
    blocks = [values[:, :0]]
    operands = (x.transpose(1, 2) for x in (scores, keys, values, decay.clamp(max=MAX_DECAY).unsqueeze(-1)))
    for q, k, v, steps in zip(*(torch.split(x, BLOCK_STEPS, dim=2) for x in operands), strict=True):  # (N, B, S, .)
        elapsed = steps.cumsum(dim=2)  # (N or 1, B or 1, S, 1)
        later = torch.ones(q.shape[2], q.shape[2], dtype=torch.bool, device=q.device).triu(1)
        fade = (elapsed.transpose(2, 3) - elapsed).masked_fill(later, -torch.inf).exp().to(q.dtype)  # [i, j]
        left = elapsed.neg().exp().to(q.dtype)  # of the state at each step
        out = (q @ k.transpose(2, 3) * fade) @ v + (q * left) @ state
        blocks.append(out.transpose(1, 2))
        state = left[:, :, -1:] * state + (k * fade[:, :, -1].unsqueeze(-1)).transpose(2, 3) @ v
    out = torch.cat(blocks, dim=1)
    return out[..., :-1] / out[..., -1:].clamp_min(torch.finfo(out.dtype).tiny), state
