import inspect
import math
import re
from typing import Any

import numpy as np
import pytest
import torch

from recbole_lisa.attention import MECHANISMS, FullAttention, build_attention
from tests.helpers import all_valid

SIZES = {
    *("hidden_size", "max_length", "n_projected", "bucket_size", "n_hashes", "window_size", "n_top_buckets"),
    *("n_clusters", "n_top_keys", "n_hash_planes", "n_kmeans_iterations"),
}


@pytest.mark.parametrize(("text", "message"), [("Storage size overflowed", "GiB: lower"), ("no kernel", "no kernel")])
def test_only_an_overflow_means_too_large(monkeypatch: pytest.MonkeyPatch, text: str, message: str) -> None:
    def build(**_: Any) -> None:
        raise RuntimeError(text)

    monkeypatch.setattr(FullAttention, "__new__", lambda cls, **_: build())
    with pytest.raises((ValueError, RuntimeError), match=message):
        build_attention("full", hidden_size=8, max_length=9)


@pytest.mark.parametrize("name", MECHANISMS)
def test_every_mechanism_is_built_by_name_and_refuses_sizes_below_one(name: str) -> None:
    attention = build_attention(name, hidden_size=8, max_length=20)
    assert isinstance(attention, MECHANISMS[name])
    assert attention(torch.randn(2, 5, 8), all_valid(2, 5)).shape == (2, 5, 8)
    parameters = inspect.signature(MECHANISMS[name]).parameters.keys()
    sizes = {size: 8 for size in ("hidden_size", "max_length") if size in parameters}
    for size in parameters & SIZES:
        for wrong in (0, -1):
            with pytest.raises(ValueError, match=f"{size} must be a whole number of at least 1, got {wrong}"):
                MECHANISMS[name](**{**sizes, size: wrong})


WRONG: list[tuple[str, dict[str, Any], str]] = [
    ("lissa", {}, "unknown attention 'lissa': known are .* Did you mean 'lisa'"),
    ("xyz", {}, "unknown attention 'xyz': known are .*lisa"),
    ("lisa", {"n_codeword": 4}, "'lisa' has no setting 'n_codeword': .* Did you mean 'n_codewords'"),
    ("full", {"n_codebooks": 4}, "'full' has no setting 'n_codebooks'"),
    ("full", {"max_length": 0}, "max_length must be a whole number of at least 1, got 0"),
    ("gla", {"hidden_size": -5}, "hidden_size must be a whole number of at least 1, got -5"),
    ("gla", {"n_heads": 0}, "twice n_heads must divide hidden_size 8, got n_heads 0"),
    ("gla", {"n_heads": 8}, "twice n_heads must divide hidden_size 8, got n_heads 8"),
    ("reformer", {"causality": "loose"}, "'strict' or 'published', got 'loose'"),
    ("routing", {"causality": "loose"}, "'strict' or 'published', got 'loose'"),
    ("clustered", {"causality": "strict"}, "causality is 'strict', but no cheap strict form of clustered attention"),
    ("routing", {"centroid_decay": 1.5}, r"centroid_decay must be in \[0, 1\], got 1.5"),
    *(
        (name, {"temperature": t}, f"temperature must be a finite number of at least 1e-30, got {t}")
        for name in ("sinkhorn", "lisa")
        for t in (0.0, math.nan, math.inf, 1e-300)
    ),
    ("full", {"n_heads": 3}, "must divide hidden_size 8, got 3"),
    ("full", {"dropout": -1.0}, r"in \[0, 1\), got -1.0"),
    ("full", {"dropout": 1.0}, r"in \[0, 1\), got 1.0"),
    ("lisa", {"decay": -1.0}, "must be a number >= 0, or one of learnable, time, spread, got -1.0"),
    ("lisa", {"decay": "linear"}, "got 'linear'"),
    ("lisa", {"decay": None}, "got None"),
    ("lisa", {"projection": "per_head"}, "per_codebook, shared, got 'per_head'"),
    ("lisa", {"bidirectional": True}, "set decay to 0, got 0.1"),
    ("lisa", {"encoding": "product"}, "residual, parallel, got 'product'"),
    ("lisa", {"similarity": "cosine"}, "bilinear, dot, euclidean, got 'cosine'"),
    ("lisa", {"n_codewords": "8"}, "n_codewords must be int, got '8'"),
    ("lisa", {"n_codewords": 0}, "n_codewords must be a whole number of at least 1, got 0"),
    ("lisa", {"local_window": -1}, "local_window must be a finite number of at least 0, got -1"),
    ("lisa", {"local_window": 3, "local_heads": 3}, "local_heads must divide hidden_size 8, got 3"),
    ("lisa", {"local_window": 3, "decay": 0, "bidirectional": True}, "needs local_window 0 and"),
    ("lisa", {"histogram_values": "exact", "decay": 0, "bidirectional": True}, "needs local_window 0 and"),
    ("lisa", {"histogram_values": "exact", "n_codebooks": 3}, "n_codebooks must divide 8, got 3"),
    ("lisa", {"histogram_values": "real"}, "histogram_values must be one of codewords, exact, got 'real'"),
    ("mamba2", {"n_heads": 5}, "n_heads must divide 2 hidden_size 16, got 5"),
    ("mamba2", {"n_heads": 0}, "n_heads must divide 2 hidden_size 16, got 0"),
    ("mamba2", {"state_size": 0}, "state_size must be a whole number of at least 1"),
    ("grela", {"n_heads": 3}, "twice n_heads must divide hidden_size 8, got n_heads 3"),
    ("grela", {"n_heads": 0}, "twice n_heads must divide hidden_size 8, got n_heads 0"),
]


@pytest.mark.parametrize(("name", "settings", "message"), WRONG)
def test_wrong_names_and_settings_are_named(name: str, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build_attention(name, **{"hidden_size": 8, "max_length": 20, **settings})


@pytest.mark.parametrize("name", MECHANISMS)
def test_a_constructor_refuses_values_of_another_kind(name: str) -> None:
    parameters = inspect.signature(MECHANISMS[name]).parameters
    sizes = {size: 8 for size in ("hidden_size", "max_length") if size in parameters}
    for setting, parameter in parameters.items():
        if parameter.annotation in (int, float, bool, str):
            for wrong in {int: ("8", True, 8.0), float: ("8", True), bool: ("True", 1), str: (1, True)}[
                parameter.annotation
            ]:
                message = (
                    f"{MECHANISMS[name].__name__}: {setting} must be {parameter.annotation.__name__}, got {wrong!r}"
                )
                with pytest.raises(ValueError, match=re.escape(message)):
                    MECHANISMS[name](**{**sizes, setting: wrong})


@pytest.mark.parametrize("name", MECHANISMS)
def test_a_size_beyond_the_memory_is_named(name: str) -> None:
    parameters = inspect.signature(MECHANISMS[name]).parameters.values()
    for size in [parameter.name for parameter in parameters if parameter.annotation is int]:
        for huge in (10**12, 10**30):
            try:
                build_attention(name, **{"hidden_size": 8, "max_length": 20, size: huge})
            except ValueError as error:
                message = f"lower {size}, which is {huge}$|{size} must be int below 2.63, got {huge}|must divide"
                assert re.search(message, str(error))
            else:
                assert huge == 10**12 and size not in ("hidden_size", "n_hashes", "n_projected", "n_top_buckets")


@pytest.mark.parametrize("name", ["linformer", "sinkhorn"])
def test_longer_sequences_than_built_for_are_refused(name: str) -> None:
    attention = build_attention(name, hidden_size=8, max_length=5)
    for call in (attention.forward, attention.last):
        with pytest.raises(ValueError, match="built for 5 positions, got a sequence of 6"):
            call(torch.randn(1, 6, 8), all_valid(1, 6))


@pytest.mark.parametrize("mask", [[False, True, True], [True, False, True]])
@pytest.mark.parametrize("name", MECHANISMS)
def test_padding_before_an_item_and_operands_of_another_kind_are_refused(name: str, mask: list[bool]) -> None:
    attention = build_attention(name, hidden_size=np.int64(8), max_length=3)
    x, valid = torch.randn(2, 3, 8), torch.tensor([[True] * 3, mask])
    for call in (attention.forward, attention.last):
        with pytest.raises(ValueError, match="padding must be on the right"):
            call(x, valid)
        with pytest.raises(ValueError, match="must be tensors, got Tensor and NoneType"):
            call(x, None)  # type: ignore[arg-type]  # a user's mistake
        with pytest.raises(ValueError, match="got ndarray"):
            call(x.numpy(), valid)  # type: ignore[arg-type]  # a user's mistake
