"""Whatever chooses keys by content: nothing earlier moves when only the next item changes, in long sequences too."""

from typing import Any

import pytest
import torch

from recbole_lisa.attention import build_attention

STRICT: list[tuple[str, dict[str, Any]]] = [
    ("reformer", {"n_hashes": 1, "bucket_size": 32}),
    ("reformer", {"n_hashes": 4, "bucket_size": 32}),
    ("routing", {"window_size": 32}),
    ("sinkhorn", {"bucket_size": 32}),
    ("sinkhorn", {"bucket_size": 32, "n_top_buckets": 2}),
    ("linear", {}),
    ("full", {}),
]
PUBLISHED: list[tuple[str, dict[str, Any]]] = [
    ("reformer", {"n_hashes": 4, "bucket_size": 32, "causality": "published"}),
    ("routing", {"window_size": 32, "causality": "published"}),
    ("clustered", {}),
]


def changes(name: str, settings: dict[str, Any]) -> int:
    """How many earlier outputs move when item t + 1 alone is replaced, over 50 random sequences and t."""
    attention = build_attention(name, hidden_size=32, max_length=256, **settings).eval()
    valid, changed = torch.ones(1, 256, dtype=torch.bool), 0
    for _ in range(50):
        x, t = torch.randn(1, 256, 32), int(torch.randint(255, ()))
        other = x.clone()
        other[:, t + 1] = torch.randn(32)
        with torch.no_grad():
            difference = (attention(x, valid) - attention(other, valid))[0, : t + 1].abs().amax(dim=-1)
        changed += int((difference > 1e-5).sum())
    return changed


@pytest.mark.parametrize(("name", "settings"), STRICT)
def test_no_position_changes_at_length_256_over_50_trials(name: str, settings: dict[str, Any]) -> None:
    assert changes(name, settings) == 0


@pytest.mark.parametrize(("name", "settings"), PUBLISHED)
def test_the_same_count_finds_the_published_forms(name: str, settings: dict[str, Any]) -> None:
    assert changes(name, settings) > 0
