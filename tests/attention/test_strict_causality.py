"""Whatever chooses keys by content: nothing earlier moves when only the next item changes, in long sequences too."""

from typing import Any

import pytest

from recbole_lisa.attention import build_attention
from tests.attention.windows import positions_that_change

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
    attention = build_attention(name, hidden_size=32, max_length=256, **settings).eval()
    return positions_that_change(attention, length=256, trials=50, hidden_size=32)


@pytest.mark.parametrize(("name", "settings"), STRICT)
def test_no_position_changes_at_length_256_over_50_trials(name: str, settings: dict[str, Any]) -> None:
    assert changes(name, settings) == 0


@pytest.mark.parametrize(("name", "settings"), PUBLISHED)
def test_the_same_count_finds_the_published_forms(name: str, settings: dict[str, Any]) -> None:
    assert changes(name, settings) > 0
