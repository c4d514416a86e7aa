"""Numba kernels of score_bounds: sums of bytes for blocks of 64 items, by byte shuffles or by look-ups.

A byte shuffle (`vpermi2b` of AVX-512 VBMI: Intel since Ice Lake, AMD since Zen 4) looks up 64 codes at once in the 128
bytes of two registers. Two shuffles and a choice by the highest bit of a code serve 256 codewords.
"""

from functools import cache
from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils, registry
from numba.extending import intrinsic

from recbole_lisa.ops.numba_threads import over_range

_BYTES = ir.VectorType(ir.IntType(8), 64)


class SmallSums(NamedTuple):
    """blocks (n, B, 64) and tables (N, B, 256), both uint8, are read; masks (n,) int64, zeros, are written."""

    blocks: Any
    tables: Any
    masks: Any


@cache
def has_byte_shuffles() -> bool:
    """Whether the processor for which Numba compiles has AVX-512 VBMI."""
    return "+avx512vbmi," in f"{registry.cpu_target.target_context.codegen().magic_tuple()[2]},"


def _mask_of_block(_: Any, codes: Any, tables: Any, n_books: Any) -> Any:
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


_block_mask: Any = intrinsic(_mask_of_block)


@over_range
def masks_by_shuffles(first: int, end: int, op: SmallSums) -> None:
    """Bit j of masks[i]: for any query n, sum_b tables[n, b, blocks[i, b, j]] < 255; blocks first..end-1."""
    n_queries, n_books, _ = op.tables.shape
    codes, tables = op.blocks.ctypes.data, op.tables.ctypes.data
    for i in range(first, end):
        for n in range(n_queries):
            op.masks[i] |= _block_mask(codes + i * n_books * 64, tables + n * n_books * 256, n_books)


@over_range
def masks_by_look_ups(first: int, end: int, op: SmallSums) -> None:
    """As masks_by_shuffles, on any processor."""
    sums = np.empty(64, dtype=np.uint32)
    for i in range(first, end):
        for n in range(op.tables.shape[0]):
            sums[:] = 0
            for b in range(op.tables.shape[1]):
                table, code = op.tables[n, b], op.blocks[i, b]
                for j in range(64):
                    sums[j] += table[code[j]]
            for j in range(64):
                if sums[j] < 255:
                    op.masks[i] |= np.int64(1) << j
