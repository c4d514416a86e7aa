"""Time of forward and backward beside the public package of the same mechanism and setting."""

import argparse
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from benchmarks.measure import Call, CheckError, Record, time_calls
from benchmarks.options import add_machine, add_number, set_up_device
from benchmarks.report import Report, Table, ratio, spread
from recbole_lisa.attention import RoutingAttention, build_attention
from recbole_lisa.errors import UsageError, install_extra

D = 128
MOST = 1.25  # our time may be this many times the package's
Loss = Callable[[Tensor], Any]  # a scalar tensor of the inputs (N, L, D)


class Case(NamedTuple):
    """A mechanism with its setting: LSH rounds, window of routing, bucket of sinkhorn, rows of linformer."""

    name: str
    key: str
    setting: int
    causality: str | None = None


FORMS = ("strict", "published")
CASES = (
    *(Case("reformer", "n_hashes", setting, form) for setting in (1, 4) for form in FORMS),
    *(Case("routing", "window_size", setting, form) for setting in (32, 64) for form in FORMS),
    *(Case("sinkhorn", "bucket_size", setting) for setting in (32, 64)),
    Case("linformer", "n_projected", 128),
)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Options of `packages`."""
    add_number(parser, "batch", 16, "N")
    add_number(parser, "length", 512, "L")
    add_machine(parser, repeats=9, cuda=False)


def run(options: argparse.Namespace) -> None:
    """Run `python -m benchmarks packages`; raises CheckError where our time is above MOST times the package's."""
    device, length = set_up_device(options), options.length
    losses = {case: (package_loss(case, length), our_loss(case, length)) for case in CASES}
    report = Report(options, device)
    x = torch.randn(options.batch, length, D, requires_grad=True)
    records: list[Record] = []
    for case, (theirs, ours) in losses.items():
        times = time_calls({"package": step(theirs, x), "ours": step(ours, x)}, repeats=options.repeats)
        title = f"{case.name} {case.key}={case.setting} {case.causality or ''}".strip()
        records.append({"case": title, "ratio": times["ours"]["median"] / times["package"]["median"], **times})
        print(f"{title}: {ratio(records[-1]['ratio'])}")
    report.finish({"rows": records}, [table(records)], {})
    if slow := [record["case"] for record in records if record["ratio"] > MOST]:
        raise CheckError(f"more than {MOST} times the package's time: {', '.join(slow)}")


def table(records: Sequence[Record]) -> Table:
    """Median [fastest, slowest] of both sides in ms, and their ratio."""
    rows = [[r["case"], spread(r["package"]), spread(r["ours"]), ratio(r["ratio"])] for r in records]
    return Table("Forward and backward, ms", ["mechanism and setting", "package", "ours", "ours / package"], rows)


def step(loss: Loss, x: Tensor) -> Call:
    """Forward and backward of a loss of x (N, L, D)."""

    def call() -> None:
        x.grad = None
        loss(x).backward()

    return call


class RoutingPackage(nn.Module):
    """The package's attention with shared queries and keys has no projections of its own: these are ours."""

    def __init__(self, attention: Any) -> None:
        super().__init__()
        self.attention = attention
        self.query, self.value = nn.Linear(D, D, bias=False), nn.Linear(D, D, bias=False)
        self.output = nn.Linear(D, D)

    def forward(self, x: Tensor) -> Any:
        """Output and commitment, summed; the centroids move, as they do in ours."""
        query, value = self.query(x).unsqueeze(1), self.value(x).unsqueeze(1)
        out, commitment = self.attention(query, query, value)
        self.attention.kmeans.update()
        return self.output(out.squeeze(1)).sum() + commitment


def package_loss(case: Case, length: int) -> Loss:
    """Sum of a package's outputs; raises UsageError if the package is missing."""
    name, setting = case.name, case.setting
    module: nn.Module
    if name == "reformer":  # full_attn_thres=0: LSH at any length
        options = {"bucket_size": 64, "n_hashes": setting, "causal": True, "full_attn_thres": 0}
        module = package("reformer_pytorch").LSHSelfAttention(D, 1, **options)
    elif name == "routing":
        routing = package("routing_transformer.routing_transformer")
        module = RoutingPackage(routing.KmeansAttention(length // setting, setting, 1, D, causal=True, shared_qk=True))
    elif name == "sinkhorn":
        options = {"heads": 1, "causal": True, "use_simple_sort_net": True, "n_top_buckets": 1, "max_seq_len": length}
        sinkhorn = package("sinkhorn_transformer.sinkhorn_transformer")
        module = sinkhorn.SinkhornSelfAttention(D, bucket_size=setting, **options)
    else:
        module = package("linformer").LinformerSelfAttention(D, length, k=setting, heads=1)
    module.train()
    return lambda x: module(x).sum()


def package(name: str) -> Any:
    """A module of the extra `oracles`."""
    try:
        return import_module(name)
    except ImportError as error:
        raise UsageError(f"{name.partition('.')[0]} is missing: {install_extra('oracles')}") from error


def our_loss(case: Case, length: int) -> Loss:
    """Sum of our outputs, for routing with its commitment."""
    settings: dict[str, Any] = {case.key: case.setting} | ({"causality": case.causality} if case.causality else {})
    attention = build_attention(case.name, hidden_size=D, max_length=length, **settings).train()

    def loss(x: Tensor) -> Any:
        valid = torch.ones(x.shape[:2], dtype=torch.bool)
        extra = 1e-4 * attention.commitment(x, valid) if isinstance(attention, RoutingAttention) else 0
        return attention(x, valid).sum() + extra

    return loss
