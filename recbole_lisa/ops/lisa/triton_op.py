r"""LISA on a GPU: Triton kernels (triton_kernels) in an autograd function.

Forward: (1) what each block of positions adds to the decayed histogram, (2) a scan over the blocks, (3) inside each
block a triangular product with the keys, the attention and its product with the values. Backward recomputes (3) for the
gradients of table and values, and only where keys or decay want a gradient scans the blocks once more, from the last to
the first. For hard codes no (N, L, B, W) tensor exists; soft keys are read from the distinct items' table and their
gradients are added straight into it.

Triton is imported when the first CUDA tensor arrives, so that the package works without it.
"""

from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from recbole_lisa.ops.checks import differentiable_once
from recbole_lisa.ops.lisa.readout import score_rows

PROGRAMS = 1024
"""Programs that divide the sums over all positions: a few for each of a GPU's 132 multiprocessors."""
PARTIAL_ELEMENTS = 2**25
"""Entries of all partial sums of the values' gradient at most: 128 MB in float32."""
SCAN_GROUP, SCAN_COLUMNS = 64, 16
"""Blocks, and columns of their histograms, that one program scans."""


@cache
def triton_is_installed() -> bool:
    """Whether Triton can be imported; it is not, yet."""
    return find_spec("triton") is not None


def _power_of_two(x: int) -> int:
    """The smallest power of two from x on that a tensor core takes."""
    return max(16, 1 << (x - 1).bit_length())


class _Sizes:
    """N, L, B, W, D, and the blocks that the kernels work in.

    block positions, n_blocks of them a sequence; block_w >= W columns; block_q query codes; out_d, sum_d and dot_d
    components of vectors where a kernel writes outputs, sums over positions, and sums over components.

    Blocks stay in a multiprocessor's registers (255 a thread) and shared memory (227 KB). Chosen by compiling for sm_90
    and reading the assembler's report: few spilled registers, and at most 96 KB of shared memory at W = 256 in float32.
    D only adds tiles.
    """

    def __init__(self, items: Tensor, values: Tensor) -> None:
        self.n, self.length = items.shape
        self.n_codebooks, self.n_codewords, self.width = values.shape
        self.columns = self.n_codebooks * self.n_codewords
        self.block_w = block_w = _power_of_two(self.n_codewords)
        self.block = 32 if block_w <= 128 else 16
        self.n_blocks = -(-self.length // self.block)
        self.block_q, tile = min(block_w, 64 if block_w <= 128 else 32), _power_of_two(self.width)
        self.out_d = min(tile, 128 if block_w * values.element_size() <= 256 else 64)
        self.sum_d, self.dot_d = min(tile, 64), min(tile, 64 if block_w <= 32 else 32)


class _Call:
    """The operands of TritonLISA, with rows (B * W, W) float32 in place of the table; the settings of its kernels."""

    def __init__(self, *operands: Any) -> None:
        items, codes, assignment, rows, values, decay, valid = operands
        self.kernels = import_module("recbole_lisa.ops.lisa.triton_kernels")
        self.sizes = _Sizes(items, values)
        self.rows, self.values, self.decay = rows, values.contiguous(), decay.contiguous()
        # Kernels need a pointer also for an operand that they do not read.
        keys = rows if assignment is None else assignment.contiguous()
        seen = items if valid is None else valid.contiguous().view(torch.uint8)
        self.inputs = (items.contiguous(), codes.contiguous(), keys, seen, self.decay)
        self.blocks = {"block": self.sizes.block, "block_w": self.sizes.block_w}
        self.flags = {"hard": assignment is None, "has_valid": valid is not None, "per_step": decay.dim() == 2}
        self.launch = {"num_warps": 4 if self.sizes.block_w == 16 else 8, "num_stages": 1}
        # Three tensor-core products are float32 up to its last bits. Plain float32 products ("ieee") run without tensor
        # cores and spill kilobytes of registers a thread.
        tensor_cores = values.is_cuda and torch.cuda.get_device_capability(values.device) >= (8, 0)
        self.precision = {"precision": "tf32x3" if tensor_cores else "ieee"}

    def empty(self, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """Uninitialised memory on the operands' device."""
        return torch.empty(shape, dtype=dtype, device=self.values.device)


def _scan(call: _Call, sums: Tensor, totals: Tensor, *, reverse: bool) -> None:
    """Turn what each block adds, (N, n_blocks, B * W), into what reaches it from the blocks before (or after) it."""
    s = call.sizes
    groups = -(-s.n_blocks // SCAN_GROUP)
    grid = (s.n * groups, -(-s.columns // SCAN_COLUMNS))
    group_sums = call.empty(s.n, groups, s.columns)
    group_decays = call.empty(s.n, groups, dtype=torch.float64)
    operands = (sums, group_sums, group_decays, totals, call.decay, s.n_blocks, groups, s.columns)
    blocks = {"block": s.block, "group": SCAN_GROUP, "block_c": SCAN_COLUMNS}
    flags = {"per_step": call.flags["per_step"], "reverse": reverse}
    call.kernels.scan_kernel[grid](*operands, **blocks, **flags, **call.precision)
    if groups > 1:
        call.kernels.join_kernel[grid](*operands, **blocks, **flags)


def _carries(call: _Call) -> tuple[Tensor, Tensor]:
    """Histogram before each block, (N, n_blocks, B * W), and the decay of each whole block, (N, n_blocks)."""
    s = call.sizes
    if s.n_blocks == 1:
        return call.empty(0), call.empty(0, dtype=torch.float64)
    sums = call.empty(s.n, s.n_blocks, s.columns)
    totals = call.empty(s.n, s.n_blocks, dtype=torch.float64)
    call.kernels.block_sums_kernel[(s.n * s.n_blocks, s.n_codebooks)](
        sums, totals, *call.inputs, s.length, s.n_blocks, s.n_codebooks, s.n_codewords,
        **call.blocks, **call.flags, **call.launch,
    )  # fmt: skip
    _scan(call, sums, totals, reverse=False)
    return sums, totals


def _forward(call: _Call, carries: Tensor) -> Tensor:
    """(N, L, D) in the type of the values."""
    s = call.sizes
    out = call.empty(s.n, s.length, s.width, dtype=call.values.dtype)
    call.kernels.forward_kernel[(s.n * s.n_blocks, -(-s.width // s.out_d))](
        out, *call.inputs, call.rows, call.values, carries, s.length, s.n_blocks, s.n_codebooks, s.n_codewords, s.width,
        block_d=s.out_d, has_carry=s.n_blocks > 1, **call.blocks, **call.flags, **call.precision, **call.launch,
    )  # fmt: skip
    return out


def _splits(n_blocks: int, programs_each: int, most: int) -> tuple[int, int]:
    """Number of parts of the blocks, at most `most`, and the blocks of each part."""
    parts = max(min(PROGRAMS // programs_each, most, n_blocks), 1)
    each = -(-n_blocks // parts)
    return -(-n_blocks // each), each


def _table_backward(
    call: _Call, d_out: Tensor, carries: Tensor, sums: Tensor | None, *, straight_through: bool
) -> Tensor:
    """Gradient of the score table, (B, W, W); fills sums, where given, with what each block sends to the one before."""
    s = call.sizes
    tiles = -(-s.n_codewords // s.block_q)
    parts, each = _splits(s.n * s.n_blocks, s.n_codebooks * tiles, s.n * s.n_blocks)
    partial = call.empty(parts, s.n_codebooks, s.n_codewords, s.n_codewords)
    call.kernels.table_backward_kernel[(parts, s.n_codebooks, tiles)](
        partial, partial if sums is None else sums, d_out, *call.inputs, call.rows, call.values, carries,
        s.length, s.n_blocks, s.n * s.n_blocks, each, s.n_codebooks, s.n_codewords, s.width,
        block_d=s.dot_d, block_q=s.block_q, has_carry=s.n_blocks > 1, keep_sums=sums is not None,
        straight_through=straight_through, **call.blocks, **call.flags, **call.precision, **call.launch,
    )  # fmt: skip
    return partial.sum(dim=0)


def _values_backward(call: _Call, d_out: Tensor, carries: Tensor) -> Tensor:
    """Gradient of the values, (B, W, D)."""
    s = call.sizes
    tiles = -(-s.width // s.sum_d)
    most = max(PARTIAL_ELEMENTS // (s.columns * s.width), 1)
    parts, each = _splits(s.n * s.n_blocks, s.n_codebooks * tiles, most)
    partial = call.empty(parts, s.n_codebooks, s.n_codewords, s.width)
    call.kernels.values_backward_kernel[(parts, s.n_codebooks, tiles)](
        partial, d_out, *call.inputs, call.rows, carries,
        s.length, s.n_blocks, s.n * s.n_blocks, each, s.n_codebooks, s.n_codewords, s.width,
        block_d=s.sum_d, has_carry=s.n_blocks > 1, **call.blocks, **call.flags, **call.precision, **call.launch,
    )  # fmt: skip
    return partial.sum(dim=0)


def _keys_backward(
    call: _Call,
    d_out: Tensor,
    carries: Tensor,
    later: Tensor,
    d_assignment: Tensor | None,
    *,
    want_decay: bool,
    straight_through: bool,
) -> Tensor | None:
    """Add to d_assignment (U, B * W); return the gradient of the decay, in its shape."""
    s = call.sizes
    d_decay = call.empty(s.n_codebooks, s.n * s.length) if want_decay else call.empty(0)
    flags = call.flags | {"want_decay": want_decay, "straight_through": straight_through}
    call.kernels.keys_backward_kernel[(s.n * s.n_blocks, s.n_codebooks)](
        d_out if d_assignment is None else d_assignment, d_decay, d_out, *call.inputs, call.rows, call.values, carries,
        later, s.length, s.n_blocks, s.n * s.length, s.n_codebooks, s.n_codewords, s.width,
        block_d=s.dot_d, has_carry=s.n_blocks > 1, want_keys=d_assignment is not None,
        **call.blocks, **flags, **call.precision, **call.launch,
    )  # fmt: skip
    if not want_decay:
        return None
    total = d_decay.sum(dim=0, dtype=torch.float64)
    return total.view(s.n, s.length) if call.flags["per_step"] else total.sum()


class TritonLISA(torch.autograd.Function):
    """apply(straight_through, *operands) -> (N, L, D), as causal lisa_attention_items.

    The operands are items, codes, assignment (U, B * W) or None, table, values, decay (float64, 0-d or (N, L)), valid
    (bool or None).
    """

    @staticmethod
    def forward(ctx: Any, straight_through: bool, *operands: Any) -> Tensor:
        """Sums of blocks, scan, blocks."""
        items, codes, assignment, table, values, decay, valid = operands
        operands = items, codes, assignment, score_rows(table.float()), values, decay, valid
        call = _Call(*operands)
        carries, totals = _carries(call)
        ctx.table_dtype, ctx.straight_through = table.dtype, straight_through
        ctx.save_for_backward(*operands, carries, totals)
        return _forward(call, carries)

    @staticmethod
    @differentiable_once
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients by assignment, table, values and decay."""
        *operands, carries, totals = ctx.saved_tensors
        _, _, assignment, _, values, _, _ = operands
        call, d_out = _Call(*operands), d_out.contiguous()
        want_keys, want_decay = ctx.needs_input_grad[3], ctx.needs_input_grad[6]
        bounded = {"straight_through": ctx.straight_through}
        s = call.sizes
        later = call.empty(s.n, s.n_blocks, s.columns) if want_keys or want_decay else None
        d_table = _table_backward(call, d_out, carries, later, **bounded).to(ctx.table_dtype)
        d_values = _values_backward(call, d_out, carries).to(values.dtype)
        d_assignment = d_decay = None
        if later is not None:
            if s.n_blocks > 1:
                _scan(call, later, totals, reverse=True)
            d_assignment = torch.zeros_like(assignment, dtype=torch.float32) if want_keys else None
            d_decay = _keys_backward(call, d_out, carries, later, d_assignment, want_decay=want_decay, **bounded)
            d_assignment = None if d_assignment is None else d_assignment.to(assignment.dtype)
        return None, None, None, d_assignment, d_table, d_values, d_decay, None
