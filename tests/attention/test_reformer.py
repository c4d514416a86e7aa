import math

import pytest
import torch

from recbole_lisa.attention import ReformerAttention
from tests.attention.contract import AttentionContract, D
from tests.attention.windows import full_shared_attention
from tests.helpers import assert_close


class TestStrictReformer(AttentionContract):
    mechanism = "reformer"
    settings = {"bucket_size": 4}


class TestStrictReformerOfFourHashes(AttentionContract):
    mechanism = "reformer"
    settings = {"bucket_size": 4, "n_hashes": 4}


class TestPublishedReformer(AttentionContract):
    mechanism = "reformer"
    settings = {"bucket_size": 2, "causality": "published"}


class TestPublishedReformerOfFourHashes(AttentionContract):
    mechanism = "reformer"
    settings = {"bucket_size": 2, "n_hashes": 4, "causality": "published"}


@pytest.mark.oracle
@pytest.mark.parametrize("n_hashes", [1, 3])
def test_one_bucket_is_full_attention(n_hashes: int) -> None:
    attention = ReformerAttention(hidden_size=D, max_length=30, bucket_size=30, n_hashes=n_hashes).double()
    attention.rotations.zero_()
    x = torch.randn(2, 23, D, dtype=torch.float64)
    assert_close(attention(x, torch.ones(2, 23, dtype=torch.bool)), full_shared_attention(attention, x))


@pytest.mark.oracle
def test_two_published_chunks_of_one_round_are_full_attention() -> None:
    attention = ReformerAttention(hidden_size=D, max_length=26, bucket_size=13, causality="published").double()
    x = torch.randn(2, 25, D, dtype=torch.float64)
    assert_close(attention(x, torch.ones(2, 25, dtype=torch.bool)), full_shared_attention(attention, x))


@pytest.mark.parametrize("causality", ["strict", "published"])
@pytest.mark.parametrize("n_hashes", [1, 4])
def test_the_first_position_returns_its_own_value(causality: str, n_hashes: int) -> None:
    attention = ReformerAttention(hidden_size=D, max_length=40, bucket_size=4, n_hashes=n_hashes, causality=causality)
    x = torch.randn(2, 40, D)
    out = attention(x, torch.ones(2, 40, dtype=torch.bool))
    assert_close(out[:, 0], attention.output(attention.value(x[:, 0])))


def test_the_number_of_buckets_comes_from_the_longest_sequence() -> None:
    attention = ReformerAttention(hidden_size=D, max_length=300, bucket_size=32, n_hashes=4)
    assert attention.rotations.shape == (4, D, math.ceil(300 / 64))
    assert torch.equal(
        attention.rotations, ReformerAttention(hidden_size=D, max_length=300, bucket_size=32, n_hashes=4).rotations
    )
    other = ReformerAttention(hidden_size=D, max_length=300, bucket_size=32, n_hashes=4, hash_seed=1)
    assert not torch.equal(attention.rotations, other.rotations)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"bucket_size": 0}, "bucket_size must be at least 1, got 0"),
        ({"n_hashes": 0}, "n_hashes must be at least 1, got 0"),
        ({"max_length": 0}, "max_length must be at least 1, got 0"),
        ({"causality": "loose"}, "causality must be 'strict' or 'published', got 'loose'"),
    ],
)
def test_wrong_settings_are_named(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ReformerAttention(**{"hidden_size": D, "max_length": 10, **settings})
