import math
from typing import Any

import pytest
import torch
from torch import Tensor

from recbole_lisa.attention import ReformerAttention
from tests.attention.contract import AttentionContract, D, full_shared_attention
from tests.helpers import assert_close

LENGTH, BUCKET = 48, 6
VALID = torch.ones(2, LENGTH, dtype=torch.bool)


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


def published(n_hashes: int) -> ReformerAttention:
    attention = ReformerAttention(
        hidden_size=D, max_length=LENGTH, bucket_size=BUCKET, n_hashes=n_hashes, causality="published"
    )
    return attention.double().eval()


def assert_same(ours: Tensor, theirs: Tensor, x: Tensor) -> None:
    assert_close(ours, theirs)
    weight = torch.randn_like(ours)
    assert_close(*(torch.autograd.grad((out * weight).sum(), x)[0] for out in (ours, theirs)))


@pytest.mark.oracle
@pytest.mark.parametrize("n_hashes", [1, 4])
def test_the_published_form_equals_the_package_reformer_pytorch(n_hashes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    package: Any = pytest.importorskip("reformer_pytorch")
    attention = published(n_hashes)
    theirs = package.LSHSelfAttention(
        D, heads=1, bucket_size=BUCKET, n_hashes=n_hashes, causal=True, full_attn_thres=0, dropout=0.0
    ).double()
    for layer, own in (
        (theirs.toqk, attention.query_key),
        (theirs.tov, attention.value),
        (theirs.to_out, attention.output),
    ):
        layer.load_state_dict(own.state_dict())
    x = torch.randn(2, LENGTH, D, dtype=torch.float64, requires_grad=True)
    rotations = attention.rotations.transpose(0, 1).unsqueeze(0)  # (1, D, R, n_buckets / 2)
    with monkeypatch.context() as patch:
        patch.setattr(torch, "randn", lambda *shape, **kwargs: rotations)
        expected = theirs.eval()(x)
    assert_same(attention(x, VALID), expected, x)


@pytest.mark.oracle
@pytest.mark.parametrize("n_hashes", [1, 4])
def test_the_published_form_equals_transformers(n_hashes: int) -> None:
    """Hugging Face leaves 1 / sqrt(D) out of the logits and norms keys by their mean square: same directions."""
    modeling: Any = pytest.importorskip("transformers.models.reformer.modeling_reformer")
    attention = published(n_hashes)
    config = modeling.ReformerConfig(
        hidden_size=D,
        num_attention_heads=1,
        attention_head_size=D,
        lsh_attn_chunk_length=BUCKET,
        lsh_num_chunks_before=1,
        lsh_num_chunks_after=0,
        num_hashes=n_hashes,
        num_buckets=LENGTH // BUCKET,
        lsh_attention_probs_dropout_prob=0.0,
        is_decoder=True,
        attn_layers=["lsh"],
    )
    theirs = modeling.LSHSelfAttention(config).double().eval()
    scale = D**0.5
    with torch.no_grad():
        theirs.query_key.weight.copy_(attention.query_key.weight / scale)
        theirs.value.weight.copy_(attention.value.weight)
    x = torch.randn(2, LENGTH, D, dtype=torch.float64, requires_grad=True)
    bucket = attention._buckets(attention.query_key(x), VALID)  # (N, R, L)
    offsets = torch.arange(n_hashes).view(1, -1, 1) * (LENGTH // BUCKET)
    buckets = (bucket + offsets).view(2, 1, -1)
    expected = attention.output(theirs(x, buckets=buckets, num_hashes=n_hashes).hidden_states)
    ours = attention(x, VALID)
    torch.testing.assert_close(ours, expected, rtol=1e-5, atol=1e-5)  # its norm adds 1e-6 to the mean square
