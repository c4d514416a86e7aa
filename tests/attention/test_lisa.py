from typing import Any

import pytest
import torch

from benchmarks import lisa_reference as naive
from recbole_lisa.attention import LISAAttention
from recbole_lisa.attention.base import CodedSequences
from recbole_lisa.attention.lisa import FrozenLISA
from recbole_lisa.ops.quantize import Quantized
from tests.attention.references import D, banded_attention
from tests.helpers import all_valid, assert_close, assert_close_with_gradients, ragged

hard_and_soft = pytest.mark.parametrize("hard", [True, False], ids=["hard", "soft"])
every_decay = pytest.mark.parametrize("decay", [0, 0.1, "learnable", "time", "spread"])


def build(**settings: Any) -> LISAAttention:
    return LISAAttention(**{"hidden_size": D, "n_codebooks": 3, "n_codewords": 5} | settings).eval()


def quantised(attention: LISAAttention, n: int, length: int) -> CodedSequences:
    """Random items (N, L) over 11 distinct vectors, quantised once."""
    return CodedSequences(torch.randint(11, (n, length)), attention.codebook(torch.randn(11, D)))


@hard_and_soft
def test_given_codes_equal_own_quantisation(hard: bool) -> None:
    attention = build(hard=hard)
    vectors, items, valid = torch.randn(11, D), torch.randint(11, (3, 21)), ragged(3, 21)
    coded = CodedSequences(items, attention.codebook(vectors))
    assert_close(attention(coded, valid), attention(vectors[items], valid))
    assert_close(attention.last(coded, valid), attention.last(vectors[items], valid))
    assert_close(attention.non_padding(coded, valid), attention(vectors[items], valid)[valid])


@torch.no_grad()
def test_steps_of_a_bfloat16_module_keep_counting() -> None:
    attention = build(decay=0).bfloat16()
    item = Quantized(*(column[:1] for column in attention.codebook(torch.randn(1, D).bfloat16())))
    state = attention.init_state(1)
    for _ in range(600):
        _, state = attention.step(state, item)
    assert_close(state.histogram.sum(dim=-1), torch.full((1, 3), 600.0))


def test_time_decay_scales_with_the_gaps_and_needs_them() -> None:
    attention, constant = build(decay="time"), build(decay=0.1)
    constant.load_state_dict(attention.state_dict(), strict=False)
    coded, valid = quantised(attention, 2, 12), all_valid(2, 12)
    assert_close(attention(coded, valid, torch.ones(2, 12)), constant(coded, valid))
    far = attention(coded, valid, torch.full((2, 12), 1e6))
    alone = constant(coded._replace(rows=coded.rows[:, -1:]), valid[:, -1:])
    assert_close(far[:, -1:], alone)
    with pytest.raises(ValueError, match="needs time_gaps"):
        attention(coded, valid)


def test_learnable_decay_starts_at_the_default_and_learns() -> None:
    attention = build(decay="learnable")
    assert attention.step_decay(None).item() == pytest.approx(0.1, abs=1e-6)
    attention(quantised(attention, 2, 12), all_valid(2, 12)).square().sum().backward()
    assert attention.raw_decay.grad.abs() > 0


@every_decay
@hard_and_soft
def test_frozen_attention_gives_the_same_bits(hard: bool, decay: float | str) -> None:
    attention = build(hard=hard, decay=decay)
    frozen = FrozenLISA(attention)
    x, valid, gaps = torch.randn(3, 21, D), ragged(3, 21), torch.rand(3, 21)
    assert torch.equal(frozen(x, valid, gaps), attention(x, valid, gaps))
    assert torch.equal(frozen.last(x, valid, gaps), attention.last(x, valid, gaps))


def test_a_frozen_attention_keeps_no_projection_and_computes_its_table_once() -> None:
    attention = build()
    frozen = FrozenLISA(attention)
    assert {name.split(".")[0] for name in frozen.state_dict()} == {"codebook", "table", "values", "rows", "first_rows"}
    assert frozen.table_and_values()[0] is frozen.table
    with torch.no_grad():
        attention.query.zero_()
    assert frozen.table.abs().sum() > 0


@hard_and_soft
def test_a_local_window_is_a_gated_sum_of_exact_attention_and_the_histogram(hard: bool) -> None:
    attention, plain = build(hard=hard, local_window=4, local_heads=2), build(hard=hard)
    plain.load_state_dict(attention.state_dict(), strict=False)
    x, valid = torch.randn(3, 21, D), ragged(3, 21)
    query, key, value, gate = (part.view(3, 21, -1, D // 2) for part in attention.local.projections(x).chunk(4, dim=-1))
    attention.local.bias.data.normal_()
    exact = banded_attention(query, key, value, attention.local.bias)
    gate = torch.sigmoid(gate)
    mixed = gate * exact + (1 - gate) * plain(x, valid).view_as(gate)
    assert_close(attention(x, valid), mixed.flatten(2) * valid.unsqueeze(2))


@hard_and_soft
def test_exact_values_are_those_of_softmax_attention_over_quantised_keys(hard: bool) -> None:
    attention = build(hard=hard, histogram_values="exact", n_codebooks=4)
    x, valid = torch.randn(3, 41, D), ragged(3, 41)
    codes, assignment = (column.view(3, 41, *column.shape[1:]) for column in attention.codebook(x.flatten(0, 1))[:2])
    table, values = attention.table_and_values()[0], x @ attention.value[0]
    expected = naive.exact_values_attention(codes, table, values, assignment=assignment, decay=0.1, valid=valid)
    assert_close(attention(x, valid), expected)


VECTORS: dict[str, dict[str, Any]] = {
    "codes": {},
    "codes-large-scores": {},
    "local": {"local_window": 6, "local_heads": 4},
    "exact": {"histogram_values": "exact", "n_codebooks": 4},
    "exact-local": {"histogram_values": "exact", "n_codebooks": 2, "local_window": 3},
}


@pytest.mark.parametrize("form", VECTORS)
@every_decay
@hard_and_soft
def test_steps_equal_the_whole_sequence(hard: bool, decay: float | str, form: str) -> None:
    """Items may come with vectors of their own; the frozen attention gives the same."""
    attention = build(hard=hard, decay=decay, **VECTORS[form])
    if form == "codes-large-scores":
        attention.double().query.data *= 1e4
    assert FrozenLISA(attention).log_domain == (form == "codes-large-scores")
    for parameter in [] if attention.local is None else [attention.local.bias]:
        parameter.data.normal_()
    coded = quantised(attention, 2, 20)
    if attention.needs_vectors:
        coded = coded._replace(vectors=torch.randn(2, 20, D))
    gaps, valid = torch.rand(2, 20), ragged(2, 20)
    whole = attention(coded, all_valid(2, 20), gaps)
    assert_close(attention.last(coded, valid, gaps), whole[torch.arange(2), valid.sum(dim=1) - 1])
    for module in (attention, attention.frozen()):
        state = module.init_state(2)
        for i in range(20):
            new = Quantized(*(column[coded.rows[:, i]] for column in coded.quantized))
            gap = gaps[:, i] if decay == "time" else None
            out, state = module.step(state, new, gap, None if coded.vectors is None else coded.vectors[:, i])
            assert_close(out, whole[:, i])
        for kept, expected in zip(state, attention.state_of(coded, all_valid(2, 20), gaps), strict=True):
            assert_close(kept, expected)


def test_a_local_window_needs_vectors() -> None:
    attention = build(local_window=3)
    coded = quantised(attention, 2, 5)
    with pytest.raises(ValueError, match="CodedSequences has none"):
        attention(coded, all_valid(2, 5))
    with pytest.raises(ValueError, match="pass them to step, too"):
        attention.step(attention.init_state(11), coded.quantized)


def test_spread_rates_start_between_a_half_and_1_256_and_the_last_codebook_keeps_all() -> None:
    attention = build(decay="spread", n_codebooks=8)
    expected = [*(0.5**n for n in (1, 13 / 6, 20 / 6, 4.5, 34 / 6, 41 / 6, 8)), 0]
    assert_close(attention.step_decay(None), torch.tensor(expected))
    assert build(decay="spread", n_codebooks=1).step_decay(None).tolist() == pytest.approx([0.5])


@hard_and_soft
def test_spread_rates_are_those_of_single_codebooks(hard: bool) -> None:
    attention, valid = build(decay="spread", hard=hard), ragged(2, 40)
    coded = quantised(attention, 2, 40)
    table, values = attention.table_and_values()
    codes, assignment = (column[coded.rows] for column in coded.quantized[:2])
    parts = [
        naive.lisa_attention(
            codes[..., p], table[p], values[p], assignment=assignment[:, :, p], decay=rate, valid=valid
        )
        for p, rate in ((slice(b, b + 1), rate.item()) for b, rate in enumerate(attention.step_decay(None)))
    ]
    assert_close(attention(coded, valid), sum(parts))
    attention(coded, valid).square().sum().backward()
    assert (attention.raw_decay.grad != 0).all()


@hard_and_soft
def test_the_gradient_of_hard_keys_is_bounded(hard: bool) -> None:
    attention, valid = build(hard=hard), ragged(2, 30)
    with torch.no_grad():
        attention.query *= 20  # so that exp(T) / Z is above 1 at many absent codewords
    coded = quantised(attention, 2, 30)
    codes, assignment = (column[coded.rows] for column in coded.quantized[:2])
    slow = naive.lisa_attention(
        codes,
        *attention.table_and_values(),
        assignment=assignment,
        decay=attention.decay,
        valid=valid,
        straight_through=hard,
    )
    assert_close_with_gradients(attention(coded, valid), slow, [coded.quantized.assignment])
