import pytest
import torch

from recbole_lisa.attention import FullAttention
from tests.attention.references import D, causal
from tests.helpers import assert_close_with_gradients, ragged


def test_dropout_on_weights_acts_in_training_only() -> None:
    attention = FullAttention(hidden_size=D, dropout=0.5)
    x, valid = torch.randn(2, 9, D), ragged(2, 9)
    assert not torch.equal(attention(x, valid), attention(x, valid))
    attention.eval()
    assert torch.equal(attention(x, valid), attention(x, valid))


@pytest.mark.parametrize("n_heads", [1, 4])
def test_equals_the_multihead_attention_of_torch(n_heads: int) -> None:
    ours = FullAttention(hidden_size=D, n_heads=n_heads).double()
    theirs = torch.nn.MultiheadAttention(D, n_heads, batch_first=True).double()
    layers = (ours.query, ours.key, ours.value)
    with torch.no_grad():
        theirs.in_proj_weight.copy_(torch.cat([layer.weight for layer in layers]))
        theirs.in_proj_bias.copy_(torch.cat([layer.bias for layer in layers]))
    theirs.out_proj.load_state_dict(ours.output.state_dict())
    x, valid = torch.randn(3, 23, D, dtype=torch.float64, requires_grad=True), ragged(3, 23)
    expected, _ = theirs(x, x, x, attn_mask=~causal(23))
    assert_close_with_gradients(ours(x, valid), expected * valid.unsqueeze(-1), [x])
