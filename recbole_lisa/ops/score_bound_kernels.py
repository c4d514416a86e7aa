"""Numba kernels of score_bounds: sums of bytes for blocks of 64 items, by byte shuffles or by look-ups.

A byte shuffle looks up many codes at once in a small table that lies in registers, by the lowest bits of a code;
choices by the higher bits join the tables to one of 256 codewords. `vpermi2b` of AVX-512 VBMI (Intel since Ice Lake,
AMD since Zen 4) looks up 64 codes in 128 bytes, `vpshufb` of AVX2 32 codes in 16 bytes.
"""

from collections import namedtuple
from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils, registry
from numba.extending import intrinsic

from recbole_lisa.ops.numba_threads import compiled, over_range

FEATURES = f"{registry.cpu_target.target_context.codegen().magic_tuple()[2]},"
SHUFFLES = next((name for name in ("avx512vbmi", "avx2") if f"+{name}," in FEATURES), None)
"""Byte shuffles of the processor for which Numba compiles; None: it has neither kind."""


Bounds = namedtuple("Bounds", "blocks sample deficits slack ranks small masks")
"""M blocks, m of them in the sample, N queries; the names of score_bounds in brackets.

Read: blocks (M, B, 64) and sample (m, B, 64), uint8; deficits (N, B, W) [d_b] and slack (N,) [4 B eps S], float64;
ranks (N,) int64, the place of G among the sorted d of the sample, from 0.
Written, zeros before: small (N, B, 256) uint8 [q_b]; masks (M,) int64, bit j of masks[i] is item 64 i + j.
"""


@compiled
def _add_up(tables: Any, block: Any, sums: Any) -> None:
    """sums[j] = sum_b tables[b, block[b, j]]."""
    sums[:] = 0
    for b in range(len(tables)):
        table, code = tables[b], block[b]
        for j in range(64):
            sums[j] += table[code[j]]


@over_range
def set_small_tables(first: int, end: int, op: Bounds) -> None:
    """small[n] = q of score_bounds for queries first..end-1."""
    _, n_books, n_codewords = op.deficits.shape
    sums = np.empty((len(op.sample), 64))
    for n in range(first, end):
        for i in range(len(op.sample)):
            _add_up(op.deficits[n], op.sample[i], sums[i])
        largest = np.partition(sums.ravel(), op.ranks[n])[op.ranks[n]] * (1 + 1e-9) + op.slack[n]
        for b in range(n_books):
            for c in range(n_codewords):
                op.small[n, b, c] = int(min(254 * op.deficits[n, b, c] / largest, 255.0))


def _block_mask(n_lanes: int, look_up: Callable[[Any, Any, Any], Any]) -> Any:
    """Make a function (codes_at, tables_at, B) -> int64 of the addresses of codes (B, 64) and tables (B, 256), uint8.

    Bit j of the result: sum_b tables[b, codes[b, j]] < 255. look_up(builder, code, table) emits the look-up of a vector
    of n_lanes codes in the 256 bytes at the address table.
    """
    lanes, bits = ir.VectorType(ir.IntType(8), n_lanes), ir.IntType(64)

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        codes_at, tables_at, n_books = arguments
        mask = bits(0)
        for first in range(0, 64, n_lanes):
            sums = cgutils.alloca_once_value(builder, ir.Constant(lanes, [0] * n_lanes))
            with cgutils.for_range(builder, n_books) as loop:
                codes = builder.add(codes_at, builder.mul(loop.index, n_books.type(64)))
                code = _load(builder, builder.add(codes, n_books.type(first)), n_lanes)
                table = builder.add(tables_at, builder.mul(loop.index, n_books.type(256)))
                values = look_up(builder, code, table)
                builder.store(_call(builder, f"llvm.uadd.sat.v{n_lanes}i8", builder.load(sums), values), sums)
            below = builder.icmp_unsigned("!=", builder.load(sums), ir.Constant(lanes, [255] * n_lanes))
            some = builder.zext(builder.bitcast(below, ir.IntType(n_lanes)), bits)
            mask = builder.or_(mask, builder.shl(some, bits(first)))
        return mask

    def block_mask(_: Any, codes: Any, tables: Any, n_books: Any) -> Any:
        return types.int64(types.intp, types.intp, types.intp), generate

    return intrinsic(block_mask)


def _call(builder: Any, name: str, *vectors: Any) -> Any:
    """An instruction of LLVM whose result has the type of the first vector."""
    function = ir.FunctionType(vectors[0].type, [vector.type for vector in vectors])
    return builder.call(cgutils.get_or_insert_function(builder.module, function, name), vectors)


def _load(builder: Any, address: Any, n_lanes: int) -> Any:
    """A vector of bytes."""
    vector = builder.load(builder.inttoptr(address, ir.VectorType(ir.IntType(8), n_lanes).as_pointer()))
    vector.align = 1  # rows of arrays start at any address
    return vector


def _is_set(builder: Any, code: Any, bit: int) -> Any:
    """Whether a bit of each code is 1."""
    n_lanes = code.type.count
    at_the_sign = builder.shl(code, ir.Constant(code.type, [7 - bit] * n_lanes))
    return builder.icmp_signed("<", at_the_sign, ir.Constant(code.type, [0] * n_lanes))


def _look_up_vbmi(builder: Any, code: Any, table: Any) -> Any:
    """Of 64 codes, by AVX-512 VBMI."""
    t = [_load(builder, builder.add(table, table.type(at)), 64) for at in range(0, 256, 64)]
    low, high = (_call(builder, "llvm.x86.avx512.vpermi2var.qi.512", t[i], code, t[i + 1]) for i in (0, 2))
    return builder.select(_is_set(builder, code, 7), high, low)


def _look_up_avx2(builder: Any, code: Any, table: Any) -> Any:
    """Of 32 codes, by AVX2."""
    index = builder.and_(code, ir.Constant(code.type, [15] * 32))  # in 16 bytes
    is_set = {bit: _is_set(builder, code, bit) for bit in (7, 6, 5, 4)}
    twice = ir.Constant(ir.VectorType(ir.IntType(32), 32), [*range(16)] * 2)  # a shuffle stays within 16 bytes

    def values(first: int, bit: int) -> Any:
        """Look-ups in the bytes from first on by the bits 0..bit of each code."""
        if bit < 4:
            part = _load(builder, builder.add(table, table.type(first)), 16)
            return _call(builder, "llvm.x86.avx2.pshuf.b", builder.shuffle_vector(part, part, twice), index)
        low, high = values(first, bit - 1), values(first + 2**bit, bit - 1)
        return builder.select(is_set[bit], high, low)

    return values(0, 7)


_mask_by_vbmi, _mask_by_avx2 = _block_mask(64, _look_up_vbmi), _block_mask(32, _look_up_avx2)


@over_range
def masks_by_vbmi(first: int, end: int, op: Bounds) -> None:
    """Bit j of masks[i]: for any query n, sum_b small[n, b, blocks[i, b, j]] < 255; blocks first..end-1."""
    n_queries, n_books, _ = op.small.shape
    codes, tables = op.blocks.ctypes.data, op.small.ctypes.data
    for i in range(first, end):
        for n in range(n_queries):
            op.masks[i] |= _mask_by_vbmi(codes + i * n_books * 64, tables + n * n_books * 256, n_books)


@over_range
def masks_by_avx2(first: int, end: int, op: Bounds) -> None:
    """As masks_by_vbmi, by AVX2."""
    n_queries, n_books, _ = op.small.shape
    codes, tables = op.blocks.ctypes.data, op.small.ctypes.data
    for i in range(first, end):
        for n in range(n_queries):
            op.masks[i] |= _mask_by_avx2(codes + i * n_books * 64, tables + n * n_books * 256, n_books)


@over_range
def masks_by_look_ups(first: int, end: int, op: Bounds) -> None:
    """As masks_by_vbmi, on any processor."""
    sums = np.empty(64, dtype=np.uint32)
    for i in range(first, end):
        for n in range(len(op.small)):
            _add_up(op.small[n], op.blocks[i], sums)
            for j in range(64):
                if sums[j] < 255:
                    op.masks[i] |= np.int64(1) << j


MASKS = {"avx512vbmi": masks_by_vbmi, "avx2": masks_by_avx2, None: masks_by_look_ups}
"""The kernel of each value of SHUFFLES."""
