import pytest
import torch

from recbole_lisa.attention import LISAAttention
from recbole_lisa.attention.frozen_lisa import FrozenLISA
from tests.attention.contract import D, ragged


@pytest.mark.parametrize("decay", [0, 0.1, "learnable", "time"])
@pytest.mark.parametrize("hard", [True, False], ids=["hard", "soft"])
def test_frozen_attention_gives_the_same_bits(hard: bool, decay: float | str) -> None:
    attention = LISAAttention(hidden_size=D, n_codebooks=3, n_codewords=5, hard=hard, decay=decay).eval()
    frozen = FrozenLISA(attention)
    x, valid, gaps = torch.randn(3, 21, D), ragged(3, 21), torch.rand(3, 21)
    assert torch.equal(frozen(x, valid, gaps), attention(x, valid, gaps))
    assert torch.equal(frozen.last(x, valid, gaps), attention.last(x, valid, gaps))
    item, gap = attention.codebook(x[:, 0]), gaps[:, 0] if decay == "time" else None
    assert torch.equal(
        frozen.step(frozen.init_state(3), item, gap)[0], attention.step(attention.init_state(3), item, gap)[0]
    )


def test_it_keeps_no_projection_and_works_nothing_out_again() -> None:
    attention = LISAAttention(hidden_size=D, n_codebooks=3, n_codewords=5)
    frozen = FrozenLISA(attention)
    assert {name.split(".")[0] for name in frozen.state_dict()} == {"codebook", "table", "values"}
    assert frozen.table_and_values()[0] is frozen.table
    with torch.no_grad():
        attention.query.zero_()
    assert frozen.table.abs().sum() > 0
