import pytest
import torch

from recbole_lisa.ops import score_bound_kernels as kernels
from recbole_lisa.ops.codeword_scores import scores_of_one, sum_of_rows
from recbole_lisa.ops.score_bounds import code_blocks, shortlist


@pytest.fixture(params=["avx512vbmi", "avx2", None])
def _kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param and f"+{request.param}," not in kernels.FEATURES:
        pytest.skip(f"the processor has no {request.param}")
    monkeypatch.setattr(kernels, "SHUFFLES", request.param)


@pytest.mark.usefixtures("_kernel")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize(
    ("n_items", "n_books", "n_codewords", "k"),
    [(3000, 1, 256, 1), (4096, 3, 256, 9), (4097, 8, 256, 20), (9063, 5, 129, 3), (20000, 33, 7, 1)],
)
def test_every_item_of_a_list_is_on_the_shortlist(
    n_items: int, n_books: int, n_codewords: int, k: int, n: int, dtype: torch.dtype
) -> None:
    codes = torch.randint(n_codewords, (n_items, n_books)).byte()
    tables = torch.randn(n_books, n_codewords, n, dtype=dtype)
    scores = scores_of_one(codes, tables.squeeze(2)).unsqueeze(1) if n == 1 else sum_of_rows(codes, tables)
    left_out = [scores[:, i].topk(i).indices.numpy() for i in range(n)]
    ids = shortlist(code_blocks(codes), n_items, tables, k, left_out)
    assert ids is not None
    for i in range(n):
        scores[left_out[i], i] = float("-inf")
    needed = (scores >= scores.topk(k, dim=0).values[-1]).any(dim=1).nonzero().squeeze(1)
    assert set(needed.tolist()) <= set(ids.tolist())
    assert torch.equal(ids, ids.unique())
    assert ids.max() < n_items
    assert len(ids) < n_items / 5


@pytest.mark.usefixtures("_kernel")
@pytest.mark.parametrize("scale", [0.0, 1e-38, 1.0, 1e30])
def test_items_that_rounding_puts_on_a_list_are_on_the_shortlist(scale: float) -> None:
    codes = torch.randint(256, (5000, 8)).byte()
    tables = scale * (1e4 + torch.randn(8, 256, 1))  # sums lose most of the digits
    scores = scores_of_one(codes, tables.squeeze(2))
    ids = shortlist(code_blocks(codes), 5000, tables, 10, None)
    needed = (scores >= scores.topk(10).values[-1]).nonzero().squeeze(1)
    assert scale == 0 if ids is None else set(needed.tolist()) <= set(ids.tolist())


@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), float("-inf"), 3e38])
def test_numbers_that_are_not_finite_or_may_overflow_have_no_shortlist(wrong: float) -> None:
    codes, tables = torch.randint(200, (6400, 2)).byte(), torch.randn(2, 200, 1)
    assert shortlist(code_blocks(codes), 6400, tables, 1, None) is not None
    tables[1, 2] = wrong
    assert shortlist(code_blocks(codes), 6400, tables, 1, None) is None


def test_many_equal_items_or_many_places_have_no_shortlist() -> None:
    codes = (torch.arange(6400) < 1600).byte().unsqueeze(1)
    tables = torch.tensor([[0.0, 1.0]]).unsqueeze(2)
    ids = shortlist(code_blocks(codes), 6400, tables, 3, None)
    assert ids is not None
    assert ids.tolist() == list(range(1600))
    assert shortlist(code_blocks(codes), 6400, tables, 3, [ids.numpy()]) is None
    codes[6399] = 1
    assert shortlist(code_blocks(codes), 6400, tables, 3, None) is None


@pytest.mark.parametrize(("n_items", "n_codewords"), [(64, 256), (129, 256), (128, 257)])
def test_blocks_and_tables_must_fit(n_items: int, n_codewords: int) -> None:
    blocks = code_blocks(torch.full((128, 2), 5, dtype=torch.uint8))
    with pytest.raises(ValueError, match=r"needs blocks \(\d, B, 64\) uint8 and tables \(B, W <= 256, N\), got"):
        shortlist(blocks, n_items, torch.zeros(2, n_codewords, 1), 1, None)
    with pytest.raises(IndexError, match=r"codes must lie in 0\.\.4, got 5\.\.5"):
        shortlist(blocks, 128, torch.zeros(2, 5, 1), 1, None)


@pytest.mark.parametrize("n", [0, 2])
def test_each_query_has_its_own_items_that_are_left_out(n: int) -> None:
    blocks, tables = code_blocks(torch.zeros(128, 2, dtype=torch.uint8)), torch.zeros(2, 5, 1)
    with pytest.raises(ValueError, match=f"left_out must have one array for each of 1 queries, got {n}"):
        shortlist(blocks, 128, tables, 1, [torch.zeros(0).numpy()] * n)
    with pytest.raises(ValueError, match="tables must be"):
        shortlist(blocks, 128, tables[:, :, :0], 1, None)
