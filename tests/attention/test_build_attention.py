import inspect
import math
from typing import Any

import pytest
import torch

from recbole_lisa.attention import MECHANISMS, OPTIONAL_MECHANISMS, build_attention

ALL = [*MECHANISMS, *OPTIONAL_MECHANISMS]


@pytest.mark.parametrize("name", MECHANISMS)
def test_every_mechanism_is_built_by_name_and_used_outside_recbole(name: str) -> None:
    attention = build_attention(name, hidden_size=8, max_length=20)
    assert isinstance(attention, MECHANISMS[name])
    assert attention(torch.randn(2, 5, 8), torch.ones(2, 5, dtype=torch.bool)).shape == (2, 5, 8)


WRONG: list[tuple[str, dict[str, Any], str]] = [
    ("lissa", {}, "unknown attention 'lissa': known are .* Did you mean 'lisa'"),
    ("xyz", {}, "unknown attention 'xyz': known are .*lisa"),
    ("lisa", {"n_codeword": 4}, "'lisa' has no setting 'n_codeword': .* Did you mean 'n_codewords'"),
    ("full", {"n_codebooks": 4}, "'full' has no setting 'n_codebooks'"),
    *((name, {"max_length": size}, f"max_length must be .* 1, got {size}") for name in ALL for size in (0, -5)),
    *((name, {"hidden_size": 0}, "hidden_size must be at least 1, got 0") for name in ALL),
    *(
        (name, {size: wrong}, f"{size} must be at least 1, got {wrong}")
        for name, size in (
            ("linformer", "n_projected"),
            ("reformer", "bucket_size"),
            ("reformer", "n_hashes"),
            ("routing", "window_size"),
            ("sinkhorn", "bucket_size"),
            ("sinkhorn", "n_top_buckets"),
            ("clustered", "n_clusters"),
            ("clustered", "n_top_keys"),
            ("clustered", "n_hash_planes"),
            ("clustered", "n_kmeans_iterations"),
        )
        for wrong in (0, -1)
    ),
    *((name, {"causality": "loose"}, "'strict' or 'published', got 'loose'") for name in ("reformer", "routing")),
    ("clustered", {"causality": "strict"}, "causality is 'strict', but no cheap strict form of clustered attention"),
    ("routing", {"centroid_decay": 1.5}, r"centroid_decay must be in \[0, 1\], got 1.5"),
    *(
        ("sinkhorn", {"temperature": value}, f"temperature must be a finite number above 0, got {value}")
        for value in (0.0, -0.5, math.nan)
    ),
    ("full", {"n_heads": 3}, "must divide hidden_size 8, got 3"),
    *(("full", {"dropout": value}, rf"in \[0, 1\), got {value}") for value in (-1.0, 1.0)),
    ("lisa", {"decay": -1.0}, "number >= 0, learnable or time, got -1.0"),
    ("lisa", {"decay": "linear"}, "got 'linear'"),
    ("lisa", {"decay": None}, "got None"),
    ("lisa", {"projection": "per_head"}, "per_codebook, shared, got 'per_head'"),
    ("lisa", {"bidirectional": True}, "set decay to 0, got 0.1"),
    ("lisa", {"temperature": 0.0}, "temperature must be above 0, got 0.0"),
    ("lisa", {"encoding": "product"}, "residual, parallel, got 'product'"),
    ("lisa", {"similarity": "cosine"}, "bilinear, dot, euclidean, got 'cosine'"),
    ("lisa", {"n_codewords": 0}, r"at least 1, got \(8, 8, 0\)"),
]


@pytest.mark.parametrize(("name", "settings", "message"), WRONG)
def test_wrong_names_and_settings_are_named(name: str, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build_attention(name, **{"hidden_size": 8, "max_length": 20, **settings})


@pytest.mark.parametrize("name", MECHANISMS)
def test_constructors_refuse_impossible_sizes_themselves(name: str) -> None:
    parameters = inspect.signature(MECHANISMS[name]).parameters
    sizes = {size: 8 for size in ("hidden_size", "max_length") if size in parameters}
    for size in sizes:
        with pytest.raises(ValueError, match=f"{size} must be at least 1, got -1"):
            MECHANISMS[name](**{**sizes, size: -1})


@pytest.mark.parametrize("name", ["linformer", "sinkhorn"])
def test_longer_sequences_than_built_for_are_refused(name: str) -> None:
    attention = build_attention(name, hidden_size=8, max_length=5)
    for call in (attention.forward, attention.last):
        with pytest.raises(ValueError, match="built for 5 positions, got a sequence of 6"):
            call(torch.randn(1, 6, 8), torch.ones(1, 6, dtype=torch.bool))
