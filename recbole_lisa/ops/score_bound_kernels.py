"""Numba kernels of score_bounds: sums of bytes for blocks of 64 items, by byte shuffles or by look-ups.

A byte shuffle (`vpermi2b` of AVX-512 VBMI: Intel since Ice Lake, AMD since Zen 4) looks up 64 codes at once in the 128
bytes of two registers. Two shuffles and a choice by the highest bit of a code serve 256 codewords.
"""

from collections import namedtuple
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils, registry
from numba.extending import intrinsic

from recbole_lisa.ops.numba_threads import compiled, over_range

HAS_BYTE_SHUFFLES = "+avx512vbmi," in f"{registry.cpu_target.target_context.codegen().magic_tuple()[2]},"
"""Whether the processor for which Numba compiles has AVX-512 VBMI."""
_BYTES = ir.VectorType(ir.IntType(8), 64)


Bounds = namedtuple("Bounds", "blocks sample deficits slack ranks small masks")
"""blocks (n, B, 64), sample (m, B, 64) uint8, deficits (N, B, W), slack (N,) float64, ranks (N,) int64 are read.

small (N, B, 256) uint8 and masks (n,) int64 begin as zeros and are written.
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


@intrinsic
def _block_mask(_: Any, codes: Any, tables: Any, n_books: Any) -> Any:
    """Bit j: sum_b tables[b, codes[b, j]] < 255. Takes the addresses of (B, 64) and (B, 256) bytes, and B."""

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        def call(name: str, *vectors: Any) -> Any:
            function = ir.FunctionType(_BYTES, [_BYTES] * len(vectors))
            return builder.call(cgutils.get_or_insert_function(builder.module, function, name), vectors)

        def load(address: Any, n: Any) -> Any:
            vector = builder.load(builder.inttoptr(builder.add(address, builder.mul(n, size)), _BYTES.as_pointer()))
            vector.align = 1  # rows of arrays start at any address
            return vector

        codes_at, tables_at, books = arguments
        size, quarters, zeros = books.type(64), books.type(4), ir.Constant(_BYTES, [0] * 64)
        sums = cgutils.alloca_once_value(builder, zeros)
        with cgutils.for_range(builder, books) as loop:
            code, first = load(codes_at, loop.index), builder.mul(loop.index, quarters)
            t = [load(tables_at, builder.add(first, books.type(quarter))) for quarter in range(4)]
            low, high = (call("llvm.x86.avx512.vpermi2var.qi.512", t[i], code, t[i + 1]) for i in (0, 2))
            values = builder.select(builder.icmp_signed("<", code, zeros), high, low)
            builder.store(call("llvm.uadd.sat.v64i8", builder.load(sums), values), sums)
        below = builder.icmp_unsigned("!=", builder.load(sums), ir.Constant(_BYTES, [255] * 64))
        return builder.bitcast(below, ir.IntType(64))

    return types.int64(types.intp, types.intp, types.intp), generate


@over_range
def masks_by_shuffles(first: int, end: int, op: Bounds) -> None:
    """Bit j of masks[i]: for any query n, sum_b small[n, b, blocks[i, b, j]] < 255; blocks first..end-1."""
    n_queries, n_books, _ = op.small.shape
    codes, tables = op.blocks.ctypes.data, op.small.ctypes.data
    for i in range(first, end):
        for n in range(n_queries):
            op.masks[i] |= _block_mask(codes + i * n_books * 64, tables + n * n_books * 256, n_books)


@over_range
def masks_by_look_ups(first: int, end: int, op: Bounds) -> None:
    """As masks_by_shuffles, on any processor."""
    sums = np.empty(64, dtype=np.uint32)
    for i in range(first, end):
        for n in range(len(op.small)):
            _add_up(op.small[n], op.blocks[i], sums)
            for j in range(64):
                if sums[j] < 255:
                    op.masks[i] |= np.int64(1) << j
