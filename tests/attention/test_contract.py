"""What every attention mechanism must do. A new mechanism is a line of CASES."""

import copy
import json
import re
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch.nn.functional import pad

from benchmarks.references import gated_recurrence
from recbole_lisa.attention import Attention, build_attention, describe_attention, gla
from recbole_lisa.attention.recurrent import RecurrentAttention
from tests.attention.references import D
from tests.helpers import all_valid, assert_close, ragged

LISA: dict[str, Any] = {"n_codebooks": 3, "n_codewords": 5}
EXACT = LISA | {"n_codebooks": 4, "histogram_values": "exact"}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "full": ("full", {}),
    "full-2-heads": ("full", {"n_heads": 2}),
    "full-bidirectional": ("full", {"bidirectional": True}),
    "linear": ("linear", {}),
    "hstu": ("hstu", {}),
    "hstu-2-heads": ("hstu", {"n_heads": 2}),
    "lru": ("lru", {}),
    "mamba2": ("mamba2", {"state_size": 5}),
    "mamba2-1-head": ("mamba2", {"n_heads": 1, "state_size": 3}),
    "grela": ("grela", {}),
    "grela-1-head": ("grela", {"n_heads": 1}),
    "linformer": ("linformer", {"n_projected": 12}),
    "gla": ("gla", {"n_heads": 2}),
    "lisa-hard": ("lisa", LISA),
    "lisa-soft": ("lisa", LISA | {"hard": False, "similarity": "euclidean"}),
    "lisa-paper": ("lisa", LISA | {"decay": 0, "projection": "shared", "encoding": "parallel", "similarity": "dot"}),
    "lisa-learnable-decay": ("lisa", LISA | {"decay": "learnable"}),
    "lisa-bidirectional": ("lisa", LISA | {"decay": 0, "bidirectional": True, "hard": False}),
    "lisa-1-codeword": ("lisa", {"n_codebooks": 2, "n_codewords": 1}),
    "lisa-spread-decay": ("lisa", LISA | {"decay": "spread"}),
    "lisa-spread-decay-exact": ("lisa", EXACT | {"decay": "spread", "hard": False}),
    "lisa-local": ("lisa", LISA | {"local_window": 5}),
    "lisa-local-soft": ("lisa", LISA | {"local_window": 20, "local_heads": 4, "hard": False, "decay": "learnable"}),
    "lisa-exact": ("lisa", EXACT),
    "lisa-exact-local": ("lisa", EXACT | {"n_codebooks": 2, "hard": False, "decay": "learnable", "local_window": 7}),
    "reformer": ("reformer", {"bucket_size": 4}),
    "reformer-4-hashes": ("reformer", {"bucket_size": 4, "n_hashes": 4}),
    "reformer-published": ("reformer", {"bucket_size": 2, "causality": "published"}),
    "reformer-published-4-hashes": ("reformer", {"bucket_size": 2, "n_hashes": 4, "causality": "published"}),
    "routing": ("routing", {"window_size": 4}),
    "routing-published": ("routing", {"window_size": 2, "causality": "published"}),
    "sinkhorn": ("sinkhorn", {"bucket_size": 4}),
    "sinkhorn-2-sorted-buckets": ("sinkhorn", {"bucket_size": 8, "n_top_buckets": 2}),
    "clustered": ("clustered", {"n_clusters": 3, "n_top_keys": 3}),
    "clustered-bidirectional": ("clustered", {"n_clusters": 3, "n_top_keys": 3, "bidirectional": True}),
}


@pytest.fixture(params=CASES)
def build(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Attention]:
    """Takes max_length. The kernel of gla needs its package and a GPU: a naive loop runs in its place."""
    monkeypatch.setattr(gla, "load_recurrence", lambda: gated_recurrence)
    name, settings = CASES[request.param]
    return partial(build_attention, name, hidden_size=D, **settings)


@pytest.fixture
def attention(build: Callable[..., Attention]) -> Attention:
    return build(max_length=128).eval()


@pytest.fixture
def causal_attention(attention: Attention, request: pytest.FixtureRequest) -> Attention:
    """Skips a bidirectional mechanism; a test of one that says it sees the future must fail."""
    if not attention.is_causal:
        pytest.skip("bidirectional by declaration")
    if attention.sees_future:
        request.applymarker(pytest.mark.xfail(strict=True, reason="the published form sees the future"))
    return attention


@pytest.mark.parametrize("length", [1, 2, 7, 33, 63])
def test_shape_dtype_and_finite_gradients(attention: Attention, length: int) -> None:
    x, valid = torch.randn(3, length, D, requires_grad=True), ragged(3, length)
    out = attention.train()(x, valid)
    assert out.shape == x.shape
    assert out.dtype == x.dtype
    out.square().sum().backward()
    for name, grad in {"x": x.grad, **{name: p.grad for name, p in attention.named_parameters()}}.items():
        assert grad is not None, f"{name} has no gradient"
        assert torch.isfinite(grad).all(), f"gradient of {name} is not finite"


@pytest.mark.parametrize("length", [7, 33, 127])
def test_causality_by_perturbation(causal_attention: Attention, length: int) -> None:
    x, valid = torch.randn(2, length, D), all_valid(2, length)
    before = causal_attention(x, valid)
    for t in range(length - 1):
        only_next, all_later = x.clone(), x.clone()
        only_next[:, t + 1] = torch.randn(2, D) * 3
        all_later[:, t + 1 :] = torch.randn(2, length - t - 1, D) * 3
        for changed in (only_next, all_later):
            assert_close(causal_attention(changed, valid)[:, : t + 1], before[:, : t + 1])


@pytest.mark.parametrize("scale", [1e4, 1e8])
def test_large_later_items_leave_no_rounding(causal_attention: Attention, scale: float) -> None:
    x, valid = torch.randn(2, 100, D), all_valid(2, 100)
    before = causal_attention(x, valid)
    for t in (0, 1, 30, 63, 64, 98):
        changed = x.clone()
        changed[:, t + 1 :] = torch.randn(2, 99 - t, D) * scale
        assert_close(causal_attention(changed, valid)[:, : t + 1], before[:, : t + 1])


@pytest.mark.parametrize("length", [7, 33])
def test_prefixes_are_consistent(causal_attention: Attention, length: int) -> None:
    x, valid = torch.randn(2, length, D), all_valid(2, length)
    whole = causal_attention(x, valid)
    for t in range(1, length):
        assert_close(causal_attention(x[:, :t], valid[:, :t]), whole[:, :t])


def test_bidirectional_attention_sees_the_future(attention: Attention) -> None:
    if attention.is_causal:
        pytest.skip("causal by declaration")
    x, valid = torch.randn(1, 9, D), all_valid(1, 9)
    changed = x.clone()
    changed[:, -1] = torch.randn(D) * 3
    assert not torch.allclose(attention(changed, valid)[:, 0], attention(x, valid)[:, 0])


@pytest.mark.parametrize("length", [1, 7, 33])
def test_neither_padding_nor_other_rows_change_an_output(attention: Attention, length: int) -> None:
    """A batch with 15 more columns, and noise in all padding, against each row alone without padding."""
    x, valid = torch.randn(5, length + 15, D), pad(ragged(5, length), (0, 15))
    x[~valid] *= 5
    together = attention(x, valid)
    assert (together[~valid] == 0).all()
    for n, items in enumerate(valid.sum(dim=1).tolist()):
        assert_close(together[n : n + 1, :items], attention(x[n : n + 1, :items], all_valid(1, items)))


@pytest.mark.parametrize("content", [1e6, 1e30, float("inf"), float("nan")])
def test_padding_may_hold_anything(attention: Attention, content: float) -> None:
    """A row of padding only has outputs of zero, and gradients of zero."""
    valid, weight = ragged(4, 33), torch.randn(4, 33, D)
    valid[1] = False
    kept = valid.unsqueeze(-1)
    clean = torch.where(kept, torch.randn(4, 33, D), 0.0)
    results = []
    for x in (clean, torch.where(kept, clean, content * torch.ones(D).cumsum(0))):
        module, x = copy.deepcopy(attention).train(), x.requires_grad_()
        out, last = module(x, valid), module.last(x, valid)
        ((out * weight).sum() + last.square().sum()).backward()
        assert (out[~valid] == 0).all()
        assert (last[1] == 0).all()
        state = [buffer.double() for buffer in module.buffers()]
        results.append([out, last, x.grad, *(p.grad for p in module.parameters()), *state])
    for dirty, expected in zip(*results[::-1], strict=True):
        assert_close(dirty, expected)


@pytest.mark.parametrize("shape", [(3, 0), (0, 7), (0, 0)], ids=["L0", "N0", "N0-L0"])
def test_no_items_or_no_rows_give_no_outputs(attention: Attention, shape: tuple[int, int]) -> None:
    x, valid = torch.randn(*shape, D, requires_grad=True), all_valid(*shape)
    for module in (attention.eval(), attention.train()):
        assert module(x, valid).shape == (*shape, D)
        assert torch.equal(module.last(x, valid), torch.zeros(shape[0], D))
        assert module.non_padding(x, valid).shape == (0, D)


def test_inputs_of_another_shape_or_type_are_named(attention: Attention) -> None:
    x, valid = torch.randn(2, 5, D), all_valid(2, 5)
    for call in (attention.forward, attention.last, attention.non_padding):
        for wrong_x, wrong_valid, message in (
            (x[0], valid[0], "x must be (N, L, 16), got (5, 16)"),
            (x[..., 1:], valid, "x must be (N, L, 16), got (2, 5, 15)"),
            (x, valid.long(), "valid must be bool (2, 5), got torch.int64 (2, 5)"),
            (x, valid[:, 1:], "valid must be bool (2, 5), got torch.bool (2, 4)"),
            (x, valid[0], "valid must be bool (2, 5), got torch.bool (5,)"),
            (x.to_sparse(), valid, "x must be a dense tensor with numbers, on one device with the others, got"),
            (x.to("meta"), valid, "x must be a dense tensor with numbers, on one device with the others, got"),
            (x.double(), valid, "x is torch.float64, but the parameters are torch.float32"),
        ):
            with pytest.raises(ValueError, match=re.escape(message)):
                call(wrong_x, wrong_valid)
    if attention.has_state:
        state = attention.init_state(2)
        with pytest.raises(ValueError, match=rf"a state, then x \(N, 16\), got Tensor and {type(state).__name__}"):
            attention.step(x[:, 0], state)
        with pytest.raises(ValueError, match=r"takes a state, then x \(N, 16\), got .* Tensor \(2, 15\)"):
            attention.step(state, x[:, 0, 1:])
        with pytest.raises(ValueError, match="x has 9 rows, the state is of other users: "):
            attention.step(state, torch.randn(9, D))
        with pytest.raises(ValueError, match="x is torch.float64, but the parameters are torch.float32"):
            attention.step(state, x[:, 0].double())
        for other in (None, type("Other", (type(state),), {})(*state)):
            with pytest.raises(ValueError, match="step takes a state, then x"):
                attention.step(other, x[:, 0])
        with pytest.raises(ValueError, match=r"the state is of other users: .*; \w+ must be \("):
            attention.step(type(state)(*(part[..., None] for part in state)), x[:, 0])
        for n in (-1, 2.5, "2", True):
            with pytest.raises(ValueError, match=f"n must be a whole number of at least 0, got {n!r}"):
                attention.init_state(n)  # type: ignore[arg-type]  # a user's mistake


def test_last_and_non_padding_are_those_positions_of_forward(attention: Attention) -> None:
    x, valid = torch.randn(6, 33, D), ragged(6, 33)
    out = attention(x, valid)
    assert_close(attention.non_padding(x, valid), out[valid])
    assert_close(attention.last(x, valid), out[torch.arange(6), valid.sum(1) - 1])


def test_saving_and_describing_keep_the_outputs(attention: Attention, build: Callable[..., Attention]) -> None:
    """No call edits its arguments either."""
    x, valid = torch.randn(2, 33, D), ragged(2, 33)
    x_before, valid_before = x.clone(), valid.clone()
    out = attention(x, valid)
    name, settings = describe_attention(attention)
    described = build_attention(name, **({"max_length": 128} | json.loads(json.dumps(settings)))).eval()
    others = [build(max_length=128).eval(), described]
    for other in others:
        other.load_state_dict(attention.state_dict())
    for same in (attention, copy.deepcopy(attention), *others):
        assert torch.equal(same(x, valid), out)
    assert torch.equal(x, x_before)
    assert torch.equal(valid, valid_before)


def test_autocast_is_close(attention: Attention) -> None:
    x, valid = torch.randn(2, 33, D), ragged(2, 33)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        half = attention(x, valid)
    assert_close(half.float(), attention(x, valid), computed_in=torch.bfloat16)


@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_a_module_of_half_precision_gives_it(attention: Attention, dtype: torch.dtype) -> None:
    """Near the results of float32 where nothing is chosen by a comparison of scores."""
    x, valid = torch.randn(2, 33, D).to(dtype), ragged(2, 33)
    half = attention.to(dtype)(x, valid)
    assert half.dtype == dtype and torch.isfinite(half).all()
    if isinstance(attention, RecurrentAttention):
        assert_close(half.float(), attention.float()(x.float(), valid), computed_in=torch.bfloat16)


@torch.no_grad()
def test_length_4096_is_finite(build: Callable[..., Attention]) -> None:
    assert torch.isfinite(build(max_length=4096).eval()(torch.randn(1, 4096, D), all_valid(1, 4096))).all()


@pytest.mark.parametrize("result", [None, torch.ones(3, 2, D), torch.ones(3, D)], ids=["None", "L", "two"])
def test_a_mechanism_that_returns_another_shape_is_named(result: Any) -> None:
    attention = type("Own", (Attention,), {"everywhere": lambda *_: result})(hidden_size=D)
    message = r"Own.everywhere\(\) must be floating-point \(N, L, D\) with N = 3, L = 6"
    for call in (attention, attention.last):
        with pytest.raises(ValueError, match=message):
            call(torch.ones(3, 6, D), all_valid(3, 6))
