import pytest
import torch

from recbole_lisa.ops.codeword_scores import lookup_tables, scores_of_one, sum_of_rows
from recbole_lisa.ops.packing import code_dtype
from tests.helpers import assert_close


@pytest.mark.parametrize("n_codewords", [1, 5, 256, 300])
@pytest.mark.parametrize("n_codebooks", [1, 3, 8])
@pytest.mark.parametrize("n", [1, 2, 63])
def test_look_ups_equal_products_with_the_reconstruction(n: int, n_codebooks: int, n_codewords: int) -> None:
    codes = torch.randint(n_codewords, (37, n_codebooks)).to(code_dtype(n_codewords))
    codewords = torch.randn(n_codebooks, n_codewords, 16, dtype=torch.float64)
    hidden = torch.randn(n, 16, dtype=torch.float64)
    reconstruction = sum(book[codes[:, b].long()] for b, book in enumerate(codewords))
    assert_close(sum_of_rows(codes, codewords), reconstruction)
    expected = reconstruction @ hidden.t()
    for given in (codes, codes.to(torch.int32)):
        before = given.clone()
        assert_close(sum_of_rows(given, lookup_tables(hidden, codewords)), expected)
        assert torch.equal(given, before)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("n_codewords", [1, 5, 256, 300])
@pytest.mark.parametrize("n_codebooks", [1, 2, 3, 8])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_one_query_equals_one_of_many(
    n_codebooks: int, n_codewords: int, dtype: torch.dtype, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    codes = torch.randint(n_codewords, (37, n_codebooks)).to(code_dtype(n_codewords))
    tables = torch.randn(n_codebooks, n_codewords).to(dtype)
    assert scores_of_one(codes[:0], tables).shape == (0,)
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    scores = scores_of_one(codes, tables)
    assert scores.dtype == dtype
    assert_close(scores, sum_of_rows(codes, tables.unsqueeze(2)).squeeze(1))
