"""Time of forward and backward beside the public package of the same mechanism and setting, in turns in one process.

    OMP_NUM_THREADS=1 python -m pytest -m slow -s tests/attention/test_packages_speed.py

prints a table in Markdown. What is timed is processor time, so that other processes disturb it less.
"""

import statistics
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from recbole_lisa.attention import RoutingAttention, build_attention
from tests.helpers import all_valid

pytestmark = [pytest.mark.slow, pytest.mark.oracle]
N, L, D = 16, 512, 128
REPEATS = 9
MOST = 1.25
"""Our time may be this many times the package's."""
Loss = Callable[[Tensor], Tensor]


class RoutingPackage(nn.Module):
    """The package's attention with shared queries and keys has no projections of its own: these are ours."""

    def __init__(self, attention: Any) -> None:
        super().__init__()
        self.attention = attention
        self.query, self.value = nn.Linear(D, D, bias=False), nn.Linear(D, D, bias=False)
        self.output = nn.Linear(D, D)

    def forward(self, x: Tensor) -> Tensor:
        """Output and commitment, summed; the centroids move, as they do in ours."""
        query, value = self.query(x).unsqueeze(1), self.value(x).unsqueeze(1)
        out, commitment = self.attention(query, query, value)
        self.attention.kmeans.update()
        return self.output(out.squeeze(1)).sum() + commitment


def package_loss(name: str, setting: int) -> Loss:
    """Sum of a package's outputs; LSH: rounds over buckets of 64, routing and sinkhorn: window, linformer: rows."""
    package: Any
    module: nn.Module
    if name == "reformer":  # full_attn_thres=0: LSH at any length
        package = pytest.importorskip("reformer_pytorch")
        module = package.LSHSelfAttention(D, 1, bucket_size=64, n_hashes=setting, causal=True, full_attn_thres=0)
    elif name == "routing":
        package = pytest.importorskip("routing_transformer.routing_transformer")
        module = RoutingPackage(package.KmeansAttention(L // setting, setting, 1, D, causal=True, shared_qk=True))
    elif name == "sinkhorn":
        package = pytest.importorskip("sinkhorn_transformer.sinkhorn_transformer")
        options = {"heads": 1, "causal": True, "use_simple_sort_net": True, "n_top_buckets": 1}
        module = package.SinkhornSelfAttention(D, bucket_size=setting, max_seq_len=L, **options)
    else:
        package = pytest.importorskip("linformer")
        module = package.LinformerSelfAttention(D, L, k=setting, heads=1)
    module.train()
    return lambda x: module(x).sum()


def our_loss(name: str, **settings: Any) -> Loss:
    attention = build_attention(name, hidden_size=D, max_length=L, **settings).train()
    valid = all_valid(N, L)

    def loss(x: Tensor) -> Tensor:
        extra = 1e-4 * attention.commitment(x, valid) if isinstance(attention, RoutingAttention) else 0
        return attention(x, valid).sum() + extra

    return loss


def milliseconds(*losses: Loss) -> list[list[float]]:
    """Processor time of each loss with its gradients, REPEATS times in turns, after two calls to warm up."""
    x = torch.randn(N, L, D, requires_grad=True)
    times: list[list[float]] = [[] for _ in losses]
    for _ in range(REPEATS + 2):
        for loss, of_loss in zip(losses, times, strict=True):
            x.grad = None
            start = time.process_time()
            loss(x).backward()
            of_loss.append((time.process_time() - start) * 1e3)
    return [of_loss[2:] for of_loss in times]


BOTH = ({"causality": "strict"}, {"causality": "published"})


@pytest.mark.parametrize(
    ("name", "key", "setting", "form"),
    [
        *(("reformer", "n_hashes", setting, form) for setting in (1, 4) for form in BOTH),
        *(("routing", "window_size", setting, form) for setting in (32, 64) for form in BOTH),
        *(("sinkhorn", "bucket_size", setting, {}) for setting in (32, 64)),
        ("linformer", "n_projected", 128, {}),
    ],
)
def test_no_slower_than_the_package(name: str, key: str, setting: int, form: dict[str, str]) -> None:
    assert torch.get_num_threads() == 1
    times = milliseconds(package_loss(name, setting), our_loss(name, **{key: setting}, **form))
    theirs, ours = (statistics.median(ms) for ms in times)
    cells = [f"{statistics.median(ms):.0f} [{min(ms):.0f}, {max(ms):.0f}]" for ms in times]
    print(f"\n| {name} {key}={setting} {form} | {cells[0]} | {cells[1]} | {ours / theirs:.2f} |")
    assert ours <= MOST * theirs
