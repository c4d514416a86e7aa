import pytest
import torch

from recbole_lisa.attention import FullAttention
from recbole_lisa.ops.lisa import naive
from tests.attention.contract import AttentionContract, D, ragged
from tests.helpers import assert_close


class TestFull(AttentionContract):
    mechanism = "full"


class TestFullTwoHeads(AttentionContract):
    mechanism = "full"
    settings = {"n_heads": 2}


class TestFullBidirectional(AttentionContract):
    mechanism = "full"
    settings = {"bidirectional": True}


@pytest.mark.oracle
def test_equals_explicit_causal_softmax() -> None:
    attention = FullAttention(hidden_size=D).double().eval()
    x, valid = torch.randn(3, 31, D, dtype=torch.float64), ragged(3, 31)
    explicit = naive.causal_softmax_attention(attention.query(x), attention.key(x), attention.value(x))
    assert_close(attention(x, valid), attention.output(explicit) * valid.unsqueeze(-1))


def test_heads_must_divide_the_width() -> None:
    with pytest.raises(ValueError, match="must divide hidden_size 16, got 3"):
        FullAttention(hidden_size=D, n_heads=3)


@pytest.mark.parametrize("dropout", [-1.0, 1.0])
def test_dropout_must_be_a_probability(dropout: float) -> None:
    with pytest.raises(ValueError, match=rf"in \[0, 1\), got {dropout}"):
        FullAttention(hidden_size=D, dropout=dropout)


def test_dropout_on_weights_acts_in_training_only() -> None:
    attention = FullAttention(hidden_size=D, dropout=0.5)
    x, valid = torch.randn(2, 9, D), ragged(2, 9)
    assert not torch.equal(attention(x, valid), attention(x, valid))
    attention.eval()
    assert torch.equal(attention(x, valid), attention(x, valid))
