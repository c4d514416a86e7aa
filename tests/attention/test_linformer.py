import pytest
import torch

from recbole_lisa.attention import Linformer
from tests.attention.contract import AttentionContract, D, ragged
from tests.helpers import assert_close


class TestLinformer(AttentionContract):
    mechanism = "linformer"
    settings = {"n_projected": 12}


def test_identity_projection_is_full_bidirectional_attention() -> None:
    attention = Linformer(hidden_size=D, max_length=9, n_projected=9).double().eval()
    with torch.no_grad():
        attention.key_projection.copy_(torch.eye(9))
        attention.value_projection.copy_(torch.eye(9))
    x = torch.randn(2, 9, D, dtype=torch.float64)
    query, key, value = attention.query(x), attention.key(x), attention.value(x)
    full = torch.softmax(query @ key.transpose(1, 2) / D**0.5, dim=-1) @ value
    assert_close(attention(x, torch.ones(2, 9, dtype=torch.bool)), attention.output(full))


def test_a_padded_sequence_equals_the_shorter_one() -> None:
    attention = Linformer(hidden_size=D, max_length=20).double().eval()
    x, valid = torch.randn(3, 20, D, dtype=torch.float64), ragged(3, 20)
    for i in range(3):
        length = int(valid[i].sum())
        assert_close(
            attention(x, valid)[i : i + 1, :length], attention(x[i : i + 1, :length], valid[i : i + 1, :length])
        )


def test_longer_sequences_than_built_for_are_refused() -> None:
    attention = Linformer(hidden_size=D, max_length=5)
    with pytest.raises(ValueError, match="built for 5 positions, got a sequence of 6"):
        attention(torch.randn(1, 6, D), torch.ones(1, 6, dtype=torch.bool))


@pytest.mark.parametrize("name", ["hidden_size", "max_length", "n_projected"])
@pytest.mark.parametrize("size", [0, -1])
def test_sizes_below_one_are_named(name: str, size: int) -> None:
    with pytest.raises(ValueError, match=f"{name} must be at least 1, got {size}"):
        Linformer(**{"hidden_size": D, "max_length": 5, name: size})
