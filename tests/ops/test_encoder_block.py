from typing import Any

import pytest
import torch
from pytest import MonkeyPatch
from torch import Tensor

from benchmarks.references import dropout_mask
from recbole_lisa.ops import encoder_block as module
from recbole_lisa.ops.dropout_bits import draw_mask
from recbole_lisa.ops.encoder_block import BlockWeights, encoder_block, encoder_block_serves
from tests.helpers import assert_close

M, D, F, EPS = 23, 7, 10, 1e-6


def operands(dtype: torch.dtype) -> tuple[Tensor, Tensor, BlockWeights]:
    shapes = [(M, D), (M, D), (F, D), (F,), (D, F), (D,), (D,), (D,), (D,), (D,)]
    stream, attended, *weights = (torch.randn(shape, dtype=dtype).requires_grad_() for shape in shapes)
    return stream, attended, BlockWeights(*weights)


def plain_block(stream: Tensor, attended: Tensor, w: BlockWeights, p: float) -> Tensor:
    """The formula, with the masks that the next call of encoder_block draws."""
    masks = [(draw_mask(p), width) for width in (D, F, D)]
    factors = (dropout_mask(mask, M, width).to(stream.dtype) * mask.scale for mask, width in masks)
    on_attended, on_inner, on_output = factors
    h = torch.layer_norm(stream + on_attended * attended, [D], w.gain1, w.shift1, EPS)
    inner = on_inner * torch.relu(h @ w.w1.t() + w.b1)
    return torch.layer_norm(h + on_output * (inner @ w.w2.t() + w.b2), [D], w.gain2, w.shift2, EPS)


def values(
    block: Any, stream: Tensor, attended: Tensor, weights: BlockWeights, p: float, *, seed: int = 11
) -> list[Tensor]:
    """Outputs and all gradients, with the masks of one seed."""
    torch.manual_seed(seed)
    out = block(stream, attended, weights, p)
    return [out, *torch.autograd.grad(out.sin().sum(), [stream, attended, *weights])]


def fast_block(stream: Tensor, attended: Tensor, weights: BlockWeights, p: float) -> Tensor:
    return encoder_block(stream, attended, weights, dropout=p, eps=EPS)


@pytest.fixture
def small_parts(monkeypatch: MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BLOCK_ELEMENTS", 5 * D)
    monkeypatch.setattr(module, "PART_ROWS", 2)


@pytest.mark.oracle
@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("p", [0.0, 0.3])
def test_block_and_its_gradients_equal_the_formula(p: float, monkeypatch: MonkeyPatch) -> None:
    given = operands(torch.float64)
    results = [values(plain_block, *given, p)]
    for threads in (1, 3):
        monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
        results.append(values(fast_block, *given, p))
    for plain, fast, three_threads in zip(*results, strict=True):
        assert torch.equal(fast, three_threads)
        assert_close(fast, plain)


@pytest.mark.oracle
@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("p", [0.0, 0.3])
def test_float32_is_as_exact_as_the_formula_in_float32(p: float) -> None:
    # Rounding in two layer norms depends on the operands, the masks and the processor: the means of 20 draws do not.
    errors = []
    for seed in range(20):
        torch.manual_seed(1000 + seed)  # values() sets it for the masks
        stream, attended, weights = operands(torch.float32)
        exact = [x.detach().double().requires_grad_() for x in (stream, attended, *weights)]
        right = values(plain_block, exact[0], exact[1], BlockWeights(*exact[2:]), p, seed=seed)
        for block in (fast_block, plain_block):
            results = zip(values(block, stream, attended, weights, p, seed=seed), right, strict=True)
            errors.append(max(float(((x - y).abs().max() / y.abs().max()).detach()) for x, y in results))
    fast, plain = torch.tensor(errors).view(20, 2).log().mean(0).exp()
    assert fast < 1.5 * plain < 1e-5


def test_without_dropout_the_generator_stays_where_it_is() -> None:
    stream, attended, weights = operands(torch.float32)
    before = torch.get_rng_state()
    encoder_block(stream, attended, weights, dropout=0.0, eps=EPS)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("place", ["stream", "attended"])
def test_a_nan_is_not_hidden(place: str) -> None:
    stream, attended, weights = operands(torch.float64)
    with torch.no_grad():
        {"stream": stream, "attended": attended}[place][3, 2] = float("nan")
    out = encoder_block(stream, attended, weights, dropout=0.0, eps=EPS)
    assert torch.equal(out.isnan().all(dim=1), torch.arange(M) == 3)


def test_block_serves_training_without_autocast_only() -> None:
    x = torch.zeros(2)
    assert encoder_block_serves(x)
    assert not encoder_block_serves(x, x.double())
    with torch.no_grad():
        assert not encoder_block_serves(x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert not encoder_block_serves(x)
