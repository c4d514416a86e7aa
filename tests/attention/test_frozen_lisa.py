import pytest
import torch

from recbole_lisa.attention import LISAAttention
from recbole_lisa.attention.frozen_lisa import FrozenLISA
from tests.attention.contract import D, ragged
from tests.helpers import assert_close


@pytest.mark.parametrize("decay", [0, 0.1, "learnable", "time"])
@pytest.mark.parametrize("hard", [True, False], ids=["hard", "soft"])
def test_frozen_attention_gives_the_same_bits(hard: bool, decay: float | str) -> None:
    attention = LISAAttention(hidden_size=D, n_codebooks=3, n_codewords=5, hard=hard, decay=decay).eval()
    frozen = FrozenLISA(attention)
    x, valid, gaps = torch.randn(3, 21, D), ragged(3, 21), torch.rand(3, 21)
    assert torch.equal(frozen(x, valid, gaps), attention(x, valid, gaps))
    assert torch.equal(frozen.last(x, valid, gaps), attention.last(x, valid, gaps))


@pytest.mark.parametrize("scale", [1.0, 1e6], ids=["exp", "log-domain"])
@pytest.mark.parametrize("decay", [0, 0.1, "learnable", "time"])
@pytest.mark.parametrize("hard", [True, False], ids=["hard", "soft"])
@torch.no_grad()
def test_frozen_steps_equal_the_attention_s(hard: bool, decay: float | str, scale: float) -> None:
    attention = LISAAttention(hidden_size=D, n_codebooks=3, n_codewords=5, hard=hard, decay=decay).double().eval()
    attention.query *= scale
    frozen = FrozenLISA(attention)
    assert frozen.log_domain == (scale > 1)
    gaps, state, expected = torch.rand(3, 9), frozen.init_state(3), attention.init_state(3)
    assert torch.isfinite(frozen.step(state, attention.codebook(torch.randn(3, D).double()), gaps[:, 0])[0]).all()
    for t in range(9):
        item, gap = attention.codebook(torch.randn(3, D).double()), gaps[:, t] if decay == "time" else None
        (out, state), (wanted, expected) = frozen.step(state, item, gap), attention.step(expected, item, gap)
        assert_close(out, wanted)
        assert_close(state.histogram, expected.histogram)


def test_it_keeps_no_projection_and_works_nothing_out_again() -> None:
    attention = LISAAttention(hidden_size=D, n_codebooks=3, n_codewords=5)
    frozen = FrozenLISA(attention)
    assert {name.split(".")[0] for name in frozen.state_dict()} == {"codebook", "table", "values", "rows", "first_rows"}
    assert frozen.table_and_values()[0] is frozen.table
    with torch.no_grad():
        attention.query.zero_()
    assert frozen.table.abs().sum() > 0
