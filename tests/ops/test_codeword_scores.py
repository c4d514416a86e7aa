import pytest
import torch

from recbole_lisa.ops.codeword_scores import (
    lookup_tables,
    pair_columns,
    pair_tables,
    scores_of_one,
    sum_of_rows,
)
from recbole_lisa.ops.packing import code_dtype
from recbole_lisa.ops.quantize import reconstruct
from tests.helpers import assert_close


@pytest.mark.parametrize("n_codewords", [1, 5, 256, 300])
@pytest.mark.parametrize("n_codebooks", [1, 3, 8])
@pytest.mark.parametrize("n", [1, 2, 63])
def test_look_ups_equal_products_with_the_reconstruction(n: int, n_codebooks: int, n_codewords: int) -> None:
    codes = torch.randint(n_codewords, (37, n_codebooks)).to(code_dtype(n_codewords))
    codewords = torch.randn(n_codebooks, n_codewords, 16, dtype=torch.float64)
    hidden = torch.randn(n, 16, dtype=torch.float64)
    before = codes.clone()
    assert_close(sum_of_rows(codes, codewords), reconstruct(codes.long(), codewords))
    expected = reconstruct(codes.long(), codewords) @ hidden.t()
    assert_close(sum_of_rows(codes, lookup_tables(hidden, codewords)), expected)
    assert torch.equal(codes, before)
    wide = codes.to(torch.int32)
    assert_close(sum_of_rows(wide, lookup_tables(hidden, codewords)), expected)
    assert torch.equal(wide, before.int())


@pytest.mark.parametrize("n_codewords", [1, 5, 256])
@pytest.mark.parametrize("n_codebooks", [1, 2, 3, 8])
def test_pairs_equal_single_look_ups(n_codebooks: int, n_codewords: int) -> None:
    codes = torch.randint(n_codewords, (37, n_codebooks)).to(torch.uint8)
    tables = torch.randn(n_codebooks, n_codewords, dtype=torch.float64)
    columns = pair_columns(codes)
    assert columns.shape == (-(-n_codebooks // 2), 37)
    assert_close(scores_of_one(columns, pair_tables(tables)), sum_of_rows(codes, tables.unsqueeze(2)).squeeze(1))
