import pytest
import torch

from recbole_lisa.ops import packing
from recbole_lisa.ops.packing import bits_per_code, code_dtype, pack_codes, packed_size, unpack_codes

SIZES = [1, 2, 3, 5, 16, 32, 128, 129, 256, 257, 1000, 2**15, 2**15 + 1, 2**20]


def slow_pack(codes: list[int], bits: int) -> bytes:
    """One integer whose bits are the stream."""
    whole = sum(code << (i * bits) for i, code in enumerate(codes))
    return whole.to_bytes(-(-len(codes) * bits // 8), "little")


@pytest.mark.parametrize("n_codewords", SIZES)
@pytest.mark.parametrize("n_codes", [0, 1, 7, 8, 63])
def test_codes_take_log2_bits_and_come_back(n_codewords: int, n_codes: int) -> None:
    codes = torch.randint(n_codewords, (n_codes, 3))
    codes[:1] = n_codewords - 1  # the largest code fits its type
    packed = pack_codes(codes, n_codewords)
    assert packed.numpy().tobytes() == slow_pack(codes.flatten().tolist(), bits_per_code(n_codewords))
    assert len(packed) == packed_size(codes.numel(), n_codewords)
    back = unpack_codes(packed, (n_codes, 3), n_codewords)
    assert back.dtype == code_dtype(n_codewords)
    assert torch.equal(back.long(), codes)


@pytest.mark.parametrize("n_codewords", [5, 128, 257])
def test_blocks_do_not_show(monkeypatch: pytest.MonkeyPatch, n_codewords: int) -> None:
    codes = torch.randint(n_codewords, (61, 3))
    whole = pack_codes(codes, n_codewords)
    monkeypatch.setattr(packing, "BLOCK_CODES", 16)
    assert torch.equal(pack_codes(codes, n_codewords), whole)
    assert torch.equal(unpack_codes(whole, (61, 3), n_codewords).long(), codes)


@pytest.mark.parametrize(("n_codewords", "bits"), [(1, 0), (2, 1), (32, 5), (33, 6), (128, 7), (256, 8), (257, 9)])
def test_bits_are_the_logarithm(n_codewords: int, bits: int) -> None:
    assert bits_per_code(n_codewords) == bits
