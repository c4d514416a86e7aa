"""Codes as a stream of bits: log2(W) bits a code, the least significant bit first.

Bit j of code i is bit i * bits + j of the stream, and bit p of the stream is bit p mod 8 of byte p // 8. So eight codes
fill `bits` bytes exactly, whatever W is.
"""

import math

import numpy as np
import torch
from torch import Tensor

from recbole_lisa.ops.checks import MOST_CODEWORDS, check_operands, check_sizes

BLOCK_CODES = 2**18
"""Codes worked on at once, a multiple of 8: their single bits take `bits` bytes a code."""


def bits_per_code(n_codewords: int) -> int:
    """The bits of a code: log2(W), rounded up where W is no power of two; ValueError for W outside 1..2^31."""
    check_sizes(1, MOST_CODEWORDS, n_codewords=n_codewords)
    return (int(n_codewords) - 1).bit_length()


def packed_size(n_codes: int, n_codewords: int) -> int:
    """Bytes that `n_codes` packed codes take."""
    check_sizes(0, n_codes=n_codes)
    return -(-int(n_codes) * bits_per_code(n_codewords) // 8)


def code_dtype(n_codewords: int) -> torch.dtype:
    """The smallest integer type that holds 0..W-1 (and serves as an index once it is widened); W as bits_per_code."""
    bits = bits_per_code(n_codewords)
    return torch.uint8 if bits <= 8 else torch.int16 if bits <= 15 else torch.int32


def pack_codes(codes: Tensor, n_codewords: int) -> Tensor:
    """Write codes of any shape in row-major order: (packed_size,) uint8, where unused bits of the last byte are 0.

    Raises:
        ValueError: the codes are not integers in 0..W-1.
    """
    bits = bits_per_code(n_codewords)
    check_operands("codes: integer ...", codes)
    flat = codes.reshape(-1)
    if len(flat) and not 0 <= int(flat.min()) <= int(flat.max()) < n_codewords:
        raise ValueError(f"codes must lie in 0..{n_codewords - 1} (W - 1), got {int(flat.min())}..{int(flat.max())}")
    if not bits or not len(flat):
        return torch.empty(0, dtype=torch.uint8)
    if bits == 8:
        return flat.to(torch.uint8, copy=True)
    places = np.arange(bits, dtype=np.int32)
    parts = []
    for block in torch.split(flat, BLOCK_CODES):
        stream = (block.to(torch.int32).numpy()[:, None] >> places & 1).ravel()  # (codes * bits,)
        parts.append(np.packbits(stream.astype(np.uint8), bitorder="little"))
    return torch.from_numpy(np.concatenate(parts))


def unpack_codes(packed: Tensor, shape: tuple[int, ...], n_codewords: int) -> Tensor:
    """Read what `pack_codes` wrote of codes of a shape, in `code_dtype(n_codewords)`.

    Raises:
        ValueError: the number of bytes does not fit, a code is W or more, or with W = 1, where codes take no bytes,
            there are MOST_CODEWORDS codes or more.
    """
    if not isinstance(shape, tuple):
        raise ValueError(f"shape must be a tuple of sizes, got {shape!r}")
    for size in shape:
        check_sizes(0, **{"a size of shape": size})
    bits, n_codes = bits_per_code(n_codewords), math.prod(shape)
    if n_codes >= MOST_CODEWORDS and not bits:
        raise ValueError(f"shape must be sizes of below {MOST_CODEWORDS} codes, got {shape}")
    check_operands("packed: integer n", packed)
    n_bytes = packed_size(n_codes, n_codewords)
    if packed.dtype != torch.uint8 or len(packed) != n_bytes:
        needed = f"{n_codes} codes of {bits} bits take {n_bytes} bytes of uint8"
        raise ValueError(f"{needed}, got {tuple(packed.shape)} {packed.dtype}")
    codes = packed.clone() if bits == 8 else torch.zeros(n_codes, dtype=code_dtype(n_codewords))
    places = np.arange(bits, dtype=np.int32)
    for number, block in enumerate(torch.split(packed, BLOCK_CODES // 8 * bits) if 0 < bits != 8 else ()):
        part = codes[number * BLOCK_CODES : (number + 1) * BLOCK_CODES]
        stream = np.unpackbits(block.numpy(), count=len(part) * bits, bitorder="little").reshape(-1, bits)
        part.copy_(torch.from_numpy((stream.astype(np.int32) << places).sum(axis=1)))
    if n_codes and n_codewords < 2**bits and (most := int(codes.max())) >= n_codewords:
        raise ValueError(f"codes must lie in 0..{n_codewords - 1} (W - 1), got {most}: the bytes hold other codes")
    return codes.view(shape)
