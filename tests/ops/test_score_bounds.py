import pytest
import torch

from recbole_lisa.ops.codeword_scores import scores_of_one, sum_of_rows
from recbole_lisa.ops.score_bounds import code_blocks, items_above

kernels = pytest.importorskip("recbole_lisa.ops.score_bound_kernels")


@pytest.fixture(params=["shuffles", "look-ups"])
def _kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    by_shuffles = request.param == "shuffles"
    if by_shuffles and not kernels.has_byte_shuffles():
        pytest.skip("the processor has no byte shuffles")
    monkeypatch.setattr(kernels, "has_byte_shuffles", lambda: by_shuffles)


@pytest.mark.usefixtures("_kernel")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize(
    ("n_items", "n_books", "n_codewords"), [(1, 1, 1), (64, 3, 256), (65, 8, 256), (2063, 5, 129), (1000, 33, 7)]
)
def test_every_item_at_the_threshold_is_listed(
    n_items: int, n_books: int, n_codewords: int, n: int, dtype: torch.dtype
) -> None:
    codes = torch.randint(n_codewords, (n_items, n_books)).byte()
    tables, most = torch.randn(n_books, n_codewords, n, dtype=dtype), max(n_items // 9, 1)
    scores = sum_of_rows(codes, tables)
    if n == 1:
        scores = scores_of_one(codes, tables.squeeze(2)).unsqueeze(1)
    thresholds = scores.topk(max(n_items // 50, 1), dim=0).values[-1]
    ids = items_above(code_blocks(codes), n_items, tables, thresholds)
    if n_items // 4 < most:
        assert ids is None
        return
    assert ids is not None
    needed = (scores >= thresholds).any(dim=1).nonzero().squeeze(1)
    assert set(needed.tolist()) <= set(ids.tolist())
    assert torch.equal(ids, ids.unique())
    assert ids.max() < n_items
    # A sum of B floors is low by less than B steps of G / 254, so what is listed comes near the threshold.
    gap = tables.amax(dim=1).sum(dim=0) - thresholds
    assert (scores[ids] > thresholds - gap * (n_books + 1) / 254 - 1e-5).any(dim=1).all()


@pytest.mark.usefixtures("_kernel")
def test_items_below_the_threshold_by_rounding_alone_are_no_loss() -> None:
    codes = torch.randint(256, (5000, 8)).byte()
    for scale in (1e-30, 1.0, 1e30):
        tables = scale * (1e4 + torch.randn(8, 256, 1))  # sums lose most of the digits
        scores = scores_of_one(codes, tables.squeeze(2))
        ids = items_above(code_blocks(codes), 5000, tables, scores.max().unsqueeze(0))
        assert ids is not None
        assert set((scores == scores.max()).nonzero().squeeze(1).tolist()) <= set(ids.tolist())


@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), float("-inf"), 3e38])
def test_numbers_without_a_bound_give_no_list(wrong: float) -> None:
    codes, tables = torch.randint(4, (640, 2)).byte(), torch.randn(2, 4, 1)
    threshold = torch.tensor([9.0])
    assert items_above(code_blocks(codes), 640, tables, threshold) is not None
    tables[1, 2] = wrong
    assert items_above(code_blocks(codes), 640, tables, threshold) is None


def test_more_than_a_quarter_of_the_items_give_no_list() -> None:
    codes = (torch.arange(640) < 160).byte().unsqueeze(1)
    tables, threshold = torch.tensor([[0.0, 1.0]]).unsqueeze(2), torch.ones(1)
    ids = items_above(code_blocks(codes), 640, tables, threshold)
    assert ids is not None
    assert ids.tolist() == list(range(160))
    codes[639] = 1
    assert items_above(code_blocks(codes), 640, tables, threshold) is None


@pytest.mark.parametrize(("n_items", "n_codewords"), [(64, 256), (129, 256), (128, 257)])
def test_blocks_and_tables_must_fit(n_items: int, n_codewords: int) -> None:
    blocks = code_blocks(torch.zeros(128, 2, dtype=torch.uint8))
    with pytest.raises(ValueError, match=r"needs blocks \(\d, B, 64\) uint8 and tables \(B, W <= 256, N\), got"):
        items_above(blocks, n_items, torch.zeros(2, n_codewords, 1), torch.zeros(1))
