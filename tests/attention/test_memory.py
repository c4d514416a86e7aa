"""Memory of forward and backward grows with the length of the sequence, not with its square, in every mechanism."""

import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from benchmarks.references import causal_softmax_attention
from recbole_lisa.attention import MECHANISMS, RoutingAttention, build_attention
from tests.helpers import all_valid

D, SHORT, LONG = 32, 1024, 8192
CASES: list[tuple[str, dict[str, Any]]] = [
    *((name, {"n_codebooks": 4, "n_codewords": 8} if name == "lisa" else {}) for name in MECHANISMS),
    ("reformer", {"n_hashes": 4}),
    ("reformer", {"n_hashes": 4, "causality": "published"}),
    ("routing", {"causality": "published"}),
    ("clustered", {"bidirectional": True}),
]


class LiveBytes(TorchDispatchMode):
    """Counts the bytes of the tensors that operators make while it is on, until they are freed; keeps the peak."""

    def __init__(self) -> None:
        super().__init__()
        self.live = self.peak = 0
        self._known: weakref.WeakSet[torch.UntypedStorage] = weakref.WeakSet()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing is compiled here, and the skip would import the compiler, which takes seconds

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(out):
            if isinstance(leaf, Tensor):
                self._count(leaf.untyped_storage())
        return out

    def _count(self, storage: torch.UntypedStorage) -> None:
        if storage in self._known:
            return
        self._known.add(storage)
        self.live += storage.nbytes()
        self.peak = max(self.peak, self.live)
        weakref.finalize(storage, self._free, storage.nbytes())

    def _free(self, n_bytes: int) -> None:
        self.live -= n_bytes


def peak_of_training(attention: Callable[[Tensor, Tensor], Tensor], length: int) -> int:
    """Peak bytes of one forward and backward pass over a sequence, beyond the input and the parameters."""
    x, valid = torch.randn(1, length, D, requires_grad=True), all_valid(1, length)
    with LiveBytes() as memory:
        loss = attention(x, valid).sum()
        if isinstance(attention, RoutingAttention):
            loss = loss + attention.commitment(x, valid)
        loss.backward()
    return memory.peak


@pytest.mark.parametrize(("name", "settings"), CASES, ids=str)
def test_eight_times_the_length_takes_at_most_nine_times_the_memory(name: str, settings: dict[str, Any]) -> None:
    short, long = (
        peak_of_training(build_attention(name, hidden_size=D, max_length=length, **settings), length)
        for length in (SHORT, LONG)  # each built for its own length: more buckets, clusters or rotations with it
    )
    assert long <= 9 * short, f"{short / 2**20:.1f} MiB at {SHORT}, {long / 2**20:.1f} MiB at {LONG}"


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("sinkhorn", {"bucket_size": 1000, "n_top_buckets": 50}),
        ("sinkhorn", {"bucket_size": 10**9}),
        *(("reformer", {"bucket_size": 10**9, "causality": causality}) for causality in ("strict", "published")),
        *(("routing", {"window_size": 10**9, "causality": causality}) for causality in ("strict", "published")),
        ("clustered", {"n_clusters": 10**9, "n_top_keys": 10**9}),
    ],
    ids=str,
)
def test_sizes_above_the_length_take_no_memory(name: str, settings: dict[str, Any]) -> None:
    attention = build_attention(name, hidden_size=D, max_length=50, **settings)
    assert peak_of_training(attention, 50) < 4 * 2**20


def test_the_same_count_finds_a_square_matrix() -> None:
    short, long = (peak_of_training(lambda x, _: causal_softmax_attention(x, x, x), size) for size in (128, 1024))
    assert long > 30 * short
    assert long >= 1024**2 * 4
