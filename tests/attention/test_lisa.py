from typing import Any

import pytest
import torch

from recbole_lisa.attention import LISAAttention, build_attention
from recbole_lisa.attention.base import CodedSequences
from recbole_lisa.attention.lisa import FrozenLISA
from recbole_lisa.ops.quantize import Quantized
from tests.attention.contract import AttentionContract, D, ragged
from tests.helpers import assert_close

SMALL: dict[str, Any] = {"n_codebooks": 3, "n_codewords": 5}


class TestHard(AttentionContract):
    mechanism = "lisa"
    settings = SMALL


class TestSoft(AttentionContract):
    mechanism = "lisa"
    settings = SMALL | {"hard": False, "similarity": "euclidean"}


class TestPaperEquations(AttentionContract):
    mechanism = "lisa"
    settings = SMALL | {"decay": 0, "projection": "shared", "encoding": "parallel", "similarity": "dot"}


class TestLearnableDecay(AttentionContract):
    mechanism = "lisa"
    settings = SMALL | {"decay": "learnable"}


class TestBidirectional(AttentionContract):
    mechanism = "lisa"
    settings = SMALL | {"decay": 0, "bidirectional": True, "hard": False}


class TestOneCodeword(AttentionContract):
    mechanism = "lisa"
    settings = {"n_codebooks": 2, "n_codewords": 1}


def quantised(attention: LISAAttention, n: int, length: int) -> CodedSequences:
    """Random items (N, L) over 11 distinct vectors, quantised once."""
    return CodedSequences(torch.randint(11, (n, length)), attention.codebook(torch.randn(11, D)))


@pytest.mark.parametrize("hard", [True, False], ids=["hard", "soft"])
def test_given_codes_equal_own_quantisation(hard: bool) -> None:
    attention = build_attention("lisa", hidden_size=D, max_length=64, hard=hard, **SMALL)
    vectors, items, valid = torch.randn(11, D), torch.randint(11, (3, 21)), ragged(3, 21)
    coded = CodedSequences(items, attention.codebook(vectors))
    assert_close(attention(coded, valid), attention(vectors[items], valid))
    assert_close(attention.last(coded, valid), attention.last(vectors[items], valid))
    assert_close(attention.non_padding(coded, valid), attention(vectors[items], valid)[valid])


@pytest.mark.parametrize("decay", [0, 0.1, "learnable", "time"])
@pytest.mark.parametrize("hard", [True, False], ids=["hard", "soft"])
def test_steps_equal_the_whole_sequence(hard: bool, decay: float | str) -> None:
    attention = LISAAttention(hidden_size=D, hard=hard, decay=decay, **SMALL).eval()
    items, distinct = coded = quantised(attention, 2, 40)
    gaps = torch.rand(2, 40)
    whole = attention(coded, torch.ones(2, 40, dtype=torch.bool), gaps)
    state = attention.init_state(2)
    for i in range(40):
        new = Quantized(*(column[items[:, i]] for column in distinct))
        out, state = attention.step(state, new, gaps[:, i] if decay == "time" else None)
        assert_close(out, whole[:, i])
    assert state.histogram.shape == (2, 3, 5)


def test_steps_of_a_bfloat16_module_keep_counting() -> None:
    attention = LISAAttention(hidden_size=D, decay=0, **SMALL).bfloat16().eval()
    item = Quantized(*(column[:1] for column in attention.codebook(torch.randn(1, D).bfloat16())))
    state = attention.init_state(1)
    with torch.no_grad():
        for _ in range(600):
            _, state = attention.step(state, item)
    assert_close(state.histogram.sum(dim=-1), torch.full((1, 3), 600.0))


def test_time_decay_scales_with_the_gaps_and_needs_them() -> None:
    attention = LISAAttention(hidden_size=D, decay="time", **SMALL)
    constant = LISAAttention(hidden_size=D, decay=0.1, **SMALL)
    constant.load_state_dict(attention.state_dict(), strict=False)
    coded, valid = quantised(attention, 2, 12), torch.ones(2, 12, dtype=torch.bool)
    assert_close(attention(coded, valid, torch.ones(2, 12)), constant(coded, valid))
    far = attention(coded, valid, torch.full((2, 12), 1e6))
    alone = constant(coded._replace(rows=coded.rows[:, -1:]), valid[:, -1:])
    assert_close(far[:, -1:], alone)
    with pytest.raises(ValueError, match="needs time_gaps"):
        attention(coded, valid)


def test_learnable_decay_starts_at_the_default_and_learns() -> None:
    attention = LISAAttention(hidden_size=D, decay="learnable", **SMALL)
    assert attention.step_decay(None).item() == pytest.approx(0.1, abs=1e-6)
    attention(quantised(attention, 2, 12), torch.ones(2, 12, dtype=torch.bool)).square().sum().backward()
    assert attention.raw_decay.grad.abs() > 0


@pytest.mark.parametrize("decay", [0, 0.1, "learnable", "time"])
@pytest.mark.parametrize("hard", [True, False], ids=["hard", "soft"])
def test_frozen_attention_gives_the_same_bits(hard: bool, decay: float | str) -> None:
    attention = LISAAttention(hidden_size=D, **SMALL, hard=hard, decay=decay).eval()
    frozen = FrozenLISA(attention)
    x, valid, gaps = torch.randn(3, 21, D), ragged(3, 21), torch.rand(3, 21)
    assert torch.equal(frozen(x, valid, gaps), attention(x, valid, gaps))
    assert torch.equal(frozen.last(x, valid, gaps), attention.last(x, valid, gaps))


@pytest.mark.parametrize("scale", [1.0, 1e6], ids=["exp", "log-domain"])
@pytest.mark.parametrize("decay", [0, 0.1, "learnable", "time"])
@pytest.mark.parametrize("hard", [True, False], ids=["hard", "soft"])
@torch.no_grad()
def test_frozen_steps_equal_those_of_the_attention(hard: bool, decay: float | str, scale: float) -> None:
    attention = LISAAttention(hidden_size=D, **SMALL, hard=hard, decay=decay).double().eval()
    attention.query *= scale
    frozen = FrozenLISA(attention)
    assert frozen.log_domain == (scale > 1)
    gaps, state, expected = torch.rand(3, 9), frozen.init_state(3), attention.init_state(3)
    assert torch.isfinite(frozen.step(state, attention.codebook(torch.randn(3, D).double()), gaps[:, 0])[0]).all()
    for t in range(9):
        item, gap = attention.codebook(torch.randn(3, D).double()), gaps[:, t] if decay == "time" else None
        (out, state), (same, expected) = frozen.step(state, item, gap), attention.step(expected, item, gap)
        assert_close(out, same)
        assert_close(state.histogram, expected.histogram)


def test_a_frozen_attention_keeps_no_projection_and_computes_its_table_once() -> None:
    attention = LISAAttention(hidden_size=D, **SMALL)
    frozen = FrozenLISA(attention)
    assert {name.split(".")[0] for name in frozen.state_dict()} == {"codebook", "table", "values", "rows", "first_rows"}
    assert frozen.table_and_values()[0] is frozen.table
    with torch.no_grad():
        attention.query.zero_()
    assert frozen.table.abs().sum() > 0
