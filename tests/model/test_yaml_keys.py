"""Every key of a model's yaml does something: flipped, it changes the model's parameters, loss or scores."""

from typing import Any

import pytest
import torch

from recbole_lisa.config.config import LISAConfig
from recbole_lisa.errors import UsageError
from recbole_lisa.training.step import DTYPES, amp_of
from tests.model.build import MODEL_NAMES, build_model, default_settings, loss_value, random_batch

# A second value for each key.
FLIPS: dict[str, Any] = {
    **{"item_init_std": 0.02, "scale_embedding": False, "score": "cosine", "score_temperature": 0.5},
    **{"shared_negatives": 2, "seen_negatives": False, "loss_type": "BPR", "gbce_t": 0.1, "reconstruction_weight": 0.5},
    **{"hidden_size": 8, "inner_size": 24, "n_layers": 2, "n_heads": 2, "hidden_act": "tanh", "layer_norm_eps": 0.1},
    **{"hidden_dropout_prob": 0.5, "attn_dropout_prob": 0.5, "drop_path": 0.5, "attention_gate": True},
    **{"block": "gated", "positions": "from_end", "conv_width": 3, "query_time": "gap_hour_weekday"},
    **{"item_codes": "svd", "dense_items": 3, "quantize_items": True, "freeze_codebooks": True},
    **{"n_codebooks": 2, "n_codewords": 5, "n_target_codewords": 7, "codebook_temperature": 3.0},
    **{"codebook_similarity": "euclidean", "codebook_encoding": "parallel", "codebook_projection": "shared"},
    **{"codebook_init": "data", "restart_dead_codewords": True, "histogram_decay": 0.7, "histogram_values": "exact"},
    "item_input": "embeddings",
    **{"bidirectional": True, "local_window": 3, "local_heads": 4, "state_size": 3, "n_projected": 5},
    **{"n_hashes": 4, "bucket_size": 3, "hash_seed": 1, "n_top_buckets": 2, "sort_temperature": 3.0},
    **{"n_clusters": 2, "n_top_keys": 2, "n_hash_planes": 3, "n_kmeans_iterations": 1},
    **{"causality": "published", "window_size": 3, "centroid_decay": 0.1, "centroid_seed": 1, "commitment_weight": 0.5},
}
# What must be set beside a key for it to matter.
OF_CODEBOOKS = ("n_codebooks", "n_codewords", "codebook_similarity", "codebook_encoding", "codebook_temperature")
BESIDE: dict[str, dict[str, Any]] = {
    **dict.fromkeys((*OF_CODEBOOKS, "item_codes"), {"quantize_items": True}),
    "dense_items": {"item_codes": "svd", "quantize_items": True},
    "score_temperature": {"score": "cosine"},
    "seen_negatives": {"loss_type": "CE"},
    "gbce_t": {"loss_type": "gBCE"},
    "bidirectional": {"histogram_decay": 0},
    "restart_dead_codewords": {"n_codewords": 64},
    "histogram_values": {"n_codebooks": 4},
    "local_heads": {"local_window": 3},
    "n_hashes": {"bucket_size": 2},
    "hash_seed": {"bucket_size": 2, "n_clusters": 3, "n_top_keys": 2},
    "n_clusters": {"n_top_keys": 2},
    "n_hash_planes": {"n_clusters": 3, "n_top_keys": 2},
    "n_kmeans_iterations": {"n_clusters": 2, "n_top_keys": 2},
    "causality": {"bucket_size": 2, "window_size": 2},
    **dict.fromkeys(("centroid_decay", "centroid_seed"), {"window_size": 2}),
    **dict.fromkeys(("n_top_buckets", "sort_temperature"), {"bucket_size": 3}),
}
REFUSED = ("ClusteredTransformer", "causality")  # has one form only
READ_WITH_DATA = "item_codes_checkpoint"  # by item_codes.py: see tests/test_item_codes.py
KEYS = {name: [key for key in default_settings(name) if key != READ_WITH_DATA] for name in MODEL_NAMES}
CASES = [(name, key) for name in MODEL_NAMES for key in KEYS[name] if (name, key) != REFUSED]


def fingerprint(name: str, settings: dict[str, Any]) -> tuple[Any, ...]:
    """Parameter shapes, the loss of a batch, the gradients, and scores, all from one seed.

    The scores come after more batches: the second is the first that moves what training averages.
    """
    torch.manual_seed(11)
    model = build_model(name, **settings)
    batch = random_batch(6, 9, 30, n_negatives=2)
    torch.manual_seed(12)
    loss = loss_value(model.calculate_loss(batch))
    loss.backward()
    gradients = [p.grad.abs().sum().item() for p in model.parameters() if p.grad is not None]
    for _ in range(4):
        model.calculate_loss(batch)
    scores = model.eval().full_sort_predict(batch).sum().item()
    return [tuple(p.shape) for p in model.parameters()], loss.item(), gradients, scores


@pytest.mark.parametrize(("name", "key"), CASES)
def test_flipping_a_key_changes_something(name: str, key: str) -> None:
    assert key in FLIPS, f"properties/model/{name}.yaml has a key that this test does not flip: {key}"
    value = FLIPS[key]
    beside = {k: v for k, v in BESIDE.get(key, {}).items() if k in default_settings(name)}
    assert default_settings(name)[key] != value
    assert fingerprint(name, beside) == fingerprint(name, beside), "the fingerprint must repeat"
    assert fingerprint(name, beside) != fingerprint(name, {**beside, key: value})


def test_a_value_without_a_form_is_refused() -> None:
    name, strict, message = REFUSED[0], {REFUSED[1]: "strict"}, "no cheap strict form of clustered attention is known"
    with pytest.raises(ValueError, match=message):
        build_model(name, **strict)
    with pytest.raises(UsageError, match=message):
        LISAConfig(name, "ml-100k", config_dict=strict)


@pytest.mark.parametrize("amp", ["bf16", "fp16"])
def test_flipping_amp_changes_the_loss(amp: str) -> None:
    config, losses = LISAConfig("LISASoft", "ml-100k", config_dict={"amp": amp, "use_gpu": False}), []
    for used in ("no", amp_of(config)):
        torch.manual_seed(11)
        with torch.autocast("cpu", dtype=DTYPES[used], enabled=used != "no"):
            losses.append(loss_value(build_model("LISASoft").calculate_loss(random_batch(6, 9, 30))))
    assert losses[0] != losses[1]
