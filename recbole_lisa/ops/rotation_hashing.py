"""Locality-sensitive hashing by random rotations (Andoni et al., 2015; Reformer)."""

import torch
from torch import Tensor

from recbole_lisa.ops.checks import check_operands
from recbole_lisa.ops.row_blocks import choose_in_blocks, largest


def rotation_buckets(x: Tensor, rotations: Tensor) -> Tensor:
    """argmax [x R_r ; -x R_r] in each round r: x (N, L, D), rotations (R, D, P) -> (N, R, L) int64 in 0..2P-1.

    O(N L R D P), with the rotated vectors of a block of rows at a time.
    """
    check_operands("x: floating-point N L D; rotations: floating-point R+ D P+", x, rotations)
    n_rounds, width, n_pairs = rotations.shape
    side_by_side = rotations.permute(1, 0, 2).reshape(width, n_rounds * n_pairs)

    def best(rows: Tensor) -> Tensor:
        rotated = (rows.to(rotations.dtype) @ side_by_side).view(-1, n_rounds, n_pairs)
        return largest(torch.cat([rotated, -rotated], dim=-1))  # (m, R)

    with torch.autocast(x.device.type, enabled=False):
        bucket = choose_in_blocks(best, x.flatten(0, 1), 2 * n_rounds * n_pairs)
    return bucket.view(*x.shape[:2], n_rounds).transpose(1, 2)
