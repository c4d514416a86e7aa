from collections.abc import Callable
from functools import partial

import pytest
import torch
from pytest import MonkeyPatch

from benchmarks import references
from recbole_lisa.ops import Quantized, quantize
from recbole_lisa.ops.quantize import BLOCK_SCORES
from tests.helpers import assert_close_with_gradients

U, B, W, D = 7, 3, 5, 4


def case(similarity: str) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    x = torch.randn(U, D, dtype=torch.float64, requires_grad=True)
    books = torch.randn(B, W, D, dtype=torch.float64, requires_grad=True)
    bilinear = torch.randn(D, D, dtype=torch.float64, requires_grad=True) if similarity == "bilinear" else None
    return x, books, bilinear


@pytest.mark.oracle
@pytest.mark.parametrize("residual", [True, False], ids=["residual", "parallel"])
@pytest.mark.parametrize("similarity", ["bilinear", "dot", "euclidean"])
def test_soft_encoding_equals_the_vector_by_vector_reference(similarity: str, residual: bool) -> None:
    x, books, bilinear = case(similarity)
    fast = quantize(x, books, similarity=similarity, bilinear=bilinear, temperature=0.7, residual=residual, hard=False)
    slow = references.quantize(x, books, bilinear=bilinear, similarity=similarity, temperature=0.7, residual=residual)
    leaves = [t for t in (x, books, bilinear) if t is not None]
    assert torch.equal(fast.codes, slow[0])
    for ours, reference in zip((fast.assignment, fast.reconstruction), slow[1:], strict=True):
        assert_close_with_gradients(ours, reference, leaves)


@pytest.mark.parametrize("block", [1, 3 * W, 1000])
@pytest.mark.parametrize("residual", [True, False], ids=["residual", "parallel"])
@pytest.mark.parametrize("similarity", ["bilinear", "dot", "euclidean"])
def test_hard_codes_equal_one_hot_rows(similarity: str, residual: bool, block: int, monkeypatch: MonkeyPatch) -> None:
    monkeypatch.setitem(BLOCK_SCORES, "cpu", block)
    x, books, bilinear = case(similarity)
    settings = {"similarity": similarity, "bilinear": bilinear, "temperature": 0.7, "residual": residual}
    ours, reference = quantize(x, books, **settings), references.quantize(x, books, **settings, hard=True)
    assert torch.equal(ours.codes, reference[0])
    leaves = [t for t in (x, books, bilinear) if t is not None]
    both = [torch.cat([q[2], q[1].flatten(1)], dim=1) for q in (ours, reference)]
    assert_close_with_gradients(*both, leaves)
    for ours_alone, reference_alone in zip(ours[1:], reference[1:], strict=True):
        assert_close_with_gradients(ours_alone, reference_alone, leaves)
    for n_keys in (0, 4):
        some = quantize(x, books, **settings, n_keys=n_keys)
        assert some.assignment.requires_grad == (n_keys > 0) and torch.equal(some.codes, ours.codes)
        parts = [torch.cat([q[2].flatten(), q[1][:n_keys].flatten()]) for q in (some, reference)]
        assert_close_with_gradients(*parts, leaves)


@pytest.mark.parametrize("hard", [True, False], ids=["hard", "soft"])
@pytest.mark.parametrize("residual", [True, False], ids=["residual", "parallel"])
def test_euclidean_finds_the_nearest_codeword_far_from_the_origin(residual: bool, hard: bool) -> None:
    x, books = 1e4 + torch.randn(200, 8), torch.randn(B, 64, 8)
    books[: 1 if residual else B] += 1e4
    settings = {"similarity": "euclidean", "residual": residual, "hard": hard}
    of_floats, of_doubles = quantize(x, books, **settings), quantize(x.double(), books.double(), **settings)
    nearest = torch.cdist(x.double(), books[0].double(), compute_mode="donot_use_mm_for_euclid_dist").argmin(dim=1)
    assert torch.equal(of_floats.codes[:, 0], nearest)
    if hard or not residual:  # a soft word is off by 1e-3, its rounding near 1e4
        assert torch.equal(of_floats.codes, of_doubles.codes)


def test_residual_encoding_codes_what_is_left() -> None:
    books = torch.tensor([[[4.0, 0.0], [0.0, 4.0]], [[1.0, 0.0], [0.0, 1.0]]])
    x = torch.tensor([[4.2, 1.0]])
    assert quantize(x, books, similarity="euclidean", residual=True).codes.tolist() == [[0, 1]]
    assert quantize(x, books, similarity="euclidean", residual=False).codes.tolist() == [[0, 0]]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"similarity": "cosine"}, "bilinear, dot, euclidean, got 'cosine'"),
        ({"similarity": "bilinear"}, "needs bilinear matrix"),
        ({"similarity": "dot", "bilinear": torch.eye(D)}, "takes no bilinear matrix"),
        *(({"temperature": t}, f"at least 1e-30, got {t!r}") for t in (0.0, -1.0, float("nan"), 1e-300, "1", None)),
    ],
)
def test_wrong_settings_are_named(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        quantize(torch.zeros(1, D), torch.zeros(B, W, D), **settings)


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
@pytest.mark.parametrize("quantised", [quantize, partial(quantize, hard=False)], ids=["hard", "soft"])
def test_a_row_with_nan_is_nan_and_changes_no_other_row(quantised: Callable[..., Quantized], number: float) -> None:
    x, books, _ = case("dot")
    good, changed = quantised(x, books), x.detach().clone()
    changed[2, 1] = number
    bad = quantised(changed, books)
    assert not bad.codes.lt(0).any() and not bad.codes.ge(W).any()
    for before, after in zip(good, bad, strict=True):
        assert torch.equal(after[[0, 1, 3]], before[[0, 1, 3]])
    assert bad.assignment[2].isnan().any(dim=-1).all() and bad.reconstruction[2].isnan().all()


def test_the_least_temperature_gives_numbers_and_no_vector_gives_no_code() -> None:
    q = quantize(torch.randn(5, D), torch.randn(B, W, D), temperature=1e-30, hard=False)
    assert torch.isfinite(q.reconstruction).all() and torch.isfinite(q.assignment).all()
    for hard in (True, False):
        q = quantize(torch.full((5, D), 1e20), torch.randn(B, W, D), temperature=1e-30, hard=hard)
        assert q.reconstruction.isnan().all() and q.assignment.isnan().any(dim=-1).all()
    assert quantize(torch.ones(0, D), torch.ones(B, W, D)).codes.shape == (0, B)
