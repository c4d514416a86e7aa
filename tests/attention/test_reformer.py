import math
from typing import Any

import pytest
import torch

from recbole_lisa.attention import ReformerAttention
from tests.attention.references import D, shared_attention
from tests.helpers import all_valid, assert_close, assert_close_with_gradients

LENGTH, BUCKET = 48, 6


def build(**settings: Any) -> ReformerAttention:
    sizes = {"hidden_size": D, "max_length": LENGTH, "bucket_size": BUCKET}
    return ReformerAttention(**{**sizes, **settings}).double().eval()


def random_input() -> torch.Tensor:
    return torch.randn(2, LENGTH, D, dtype=torch.float64, requires_grad=True)


@pytest.mark.oracle
@pytest.mark.parametrize("n_hashes", [1, 3])
def test_one_bucket_is_full_attention(n_hashes: int) -> None:
    attention = build(max_length=30, bucket_size=30, n_hashes=n_hashes)
    attention.rotations.zero_()
    x = torch.randn(2, 23, D, dtype=torch.float64)
    assert_close(attention(x, all_valid(2, 23)), shared_attention(attention, x))


@pytest.mark.oracle
def test_two_published_chunks_of_one_round_are_full_attention() -> None:
    attention = build(max_length=26, bucket_size=13, causality="published")
    x = torch.randn(2, 25, D, dtype=torch.float64)
    assert_close(attention(x, all_valid(2, 25)), shared_attention(attention, x))


def test_the_number_of_buckets_comes_from_the_longest_sequence() -> None:
    one, same, other = (build(max_length=300, bucket_size=32, n_hashes=4, hash_seed=seed) for seed in (0, 0, 1))
    assert one.rotations.shape == (4, D, math.ceil(300 / 64))
    assert torch.equal(one.rotations, same.rotations)
    assert not torch.equal(one.rotations, other.rotations)


@pytest.mark.oracle
@pytest.mark.parametrize("n_hashes", [1, 4])
def test_the_published_form_equals_the_package_reformer_pytorch(n_hashes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    package: Any = pytest.importorskip("reformer_pytorch")
    attention, x = build(n_hashes=n_hashes, causality="published"), random_input()
    settings = {"bucket_size": BUCKET, "n_hashes": n_hashes, "causal": True, "full_attn_thres": 0, "dropout": 0.0}
    theirs = package.LSHSelfAttention(D, heads=1, **settings).double().eval()
    for layer, own in (("toqk", attention.query_key), ("tov", attention.value), ("to_out", attention.output)):
        getattr(theirs, layer).load_state_dict(own.state_dict())
    rotations = attention.rotations.transpose(0, 1).unsqueeze(0)  # (1, D, R, n_buckets / 2)
    with monkeypatch.context() as patch:
        patch.setattr(torch, "randn", lambda *shape, **kwargs: rotations)
        expected = theirs(x)
    assert_close_with_gradients(attention(x, all_valid(2, LENGTH)), expected, [x])
