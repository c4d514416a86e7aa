"""A whole training step of the models beside the same mathematics written naively.

The naive side quantises every position of the batch (inputs, targets and negatives) and lets autograd keep every
(N, L, B, W) tensor of Algorithm 1; parameters, encoder block, loss and optimiser are the models' own on both sides.
"""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from recbole_lisa.benchmark.measure import header, peak_memory, time_calls
from recbole_lisa.errors import UsageError
from recbole_lisa.layers.codebook import Codebook
from recbole_lisa.model import losses
from recbole_lisa.model.lisa_recommender import LISARecommender
from recbole_lisa.ops import reference
from recbole_lisa.properties import properties_path
from recbole_lisa.registry import model_class
from recbole_lisa.schema import read_yaml

LISA_MODELS = ("LISABase", "LISASoft", "LISAMini")
Batch = dict[str, Tensor]


class _Catalogue:
    """Stands for a data set: only the number of items matters here."""

    def __init__(self, n_items: int) -> None:
        self.n_items = n_items

    def num(self, field: str) -> int:
        return self.n_items


def build_model(name: str, *, length: int, n_items: int) -> LISARecommender:
    """The model with the settings of its yaml and n_items random items."""
    fields = {
        "USER_ID_FIELD": "user_id",
        "ITEM_ID_FIELD": "item_id",
        "TIME_FIELD": "timestamp",
        "LIST_SUFFIX": "_list",
        "ITEM_LIST_LENGTH_FIELD": "item_length",
        "NEG_PREFIX": "neg_",
        "MAX_ITEM_LIST_LENGTH": length,
        "device": torch.device("cpu"),
        "train_neg_sample_args": {"distribution": "uniform"},
    }
    torch.manual_seed(0)
    model: LISARecommender = model_class(name)(
        read_yaml(properties_path() / "model" / f"{name}.yaml") | fields, _Catalogue(n_items)
    )
    return model


def random_batch(n: int, length: int, n_items: int) -> Batch:
    """N full sequences of random items with a target and one negative a position."""
    torch.manual_seed(1)
    return {
        "item_id_list": torch.randint(1, n_items, (n, length)),
        "item_length": torch.full((n,), length),
        "target_id_list": torch.randint(1, n_items, (n, length)),
        "neg_target_id_list": torch.randint(1, n_items, (n, length, 1)),
    }


def fused_loss(model: LISARecommender, batch: Batch) -> Tensor:
    """The model's own loss."""
    loss = model.calculate_loss(batch)
    return sum(loss) if isinstance(loss, tuple) else loss


def naive_loss(model: LISARecommender, batch: Batch) -> Tensor:
    """The same loss, quantiser per position and eager attention."""
    items = batch["item_id_list"]
    n, length = items.shape
    x = model.embed(items.flatten())  # (N * L, D)
    codes, assignment, y = _quantize(model.codebook, x)
    attention = model.attentions[0]
    table, values = attention.table_and_values()
    attended = reference.lisa_attention_eager(
        codes.view(n, length, -1),
        table,
        values,
        assignment=assignment.view(n, length, *assignment.shape[1:]),
        decay=float(attention.decay),
    )
    stream = model.dropout(y.view(n, length, -1) + model.position_embedding.weight[:length])
    hidden = model.blocks[0](stream, attended).flatten(0, 1)  # (N * L, D)
    positive, negative = (
        (hidden * _target(model, model.embed(batch[key].flatten()))).sum(dim=-1)
        for key in ("target_id_list", "neg_target_id_list")
    )
    loss = losses.binary_cross_entropy(positive, negative.unsqueeze(1))
    if model.reconstruction_weight:
        everything = torch.cat([v.flatten() for k, v in batch.items() if k != "item_length"]).unique()
        x = model.embed(everything)
        loss = loss + model.reconstruction_weight * (x - model.codebook(x)[2].detach()).square().sum(dim=-1).mean()
    return loss


def _quantize(codebook: Codebook, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    assert codebook.bilinear is not None
    return reference.quantize_eager(
        x, codebook.codewords, bilinear=codebook.bilinear, temperature=codebook.temperature, hard=codebook.hard
    )


def _target(model: LISARecommender, x: Tensor) -> Tensor:
    name = type(model).__name__
    if name == "LISASoft":
        return x
    return _quantize(model.target_codebook if name == "LISAMini" else model.codebook, x)[2]


SIDES: dict[str, Callable[[LISARecommender, Batch], Tensor]] = {"naive": naive_loss, "ours": fused_loss}


def prepare_step(name: str, side: str, n: int, length: int, n_items: int) -> Callable[[], object]:
    """Everything of one side but the call: forward, backward and an Adam step."""
    model = build_model(name, length=length, n_items=n_items).train()
    batch = random_batch(n, length, n_items)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)

    def step() -> None:
        optimizer.zero_grad()
        SIDES[side](model, batch).backward()
        optimizer.step()

    return step


def check_equal(name: str, *, length: int, n_items: int) -> None:
    """Loss and gradients of both sides agree, dropout off, before anything is timed.

    Raises:
        AssertionError: they differ.
    """
    model = build_model(name, length=length, n_items=n_items).double().train()
    for module in model.modules():
        if hasattr(module, "p"):
            module.p = 0.0
    batch = random_batch(4, length, n_items)
    results = []
    for side in SIDES.values():
        loss = side(model, batch)
        results.append((loss, torch.autograd.grad(loss, list(model.parameters()))))
    torch.testing.assert_close(results[0][0], results[1][0], rtol=1e-9, atol=1e-9)
    for naive, ours in zip(results[0][1], results[1][1], strict=True):
        torch.testing.assert_close(naive, ours, rtol=1e-6, atol=1e-9)


def benchmark_step(
    models: Sequence[str],
    *,
    n: int,
    length: int,
    n_items: int,
    repeats: int,
    threads: int | None = None,
    output: str | None = None,
) -> list[dict[str, Any]]:
    """Print, and optionally write, one row a model.

    Args:
        models: names of LISA models.
        n: sequences N.
        length: positions L.
        n_items: items V, padding included.
        repeats: timed steps of each side.
        threads: torch threads; None keeps torch's own number.
        output: JSON file.

    Returns:
        Rows with model, seconds of both sides, their ratio, and the peak memory of both in MB.

    Raises:
        UsageError: a model is not a LISA model.
    """
    for name in models:
        if name not in LISA_MODELS:
            raise UsageError(f"benchmark step has no naive twin of '{name}': known are {', '.join(LISA_MODELS)}")
    if threads:
        torch.set_num_threads(threads)
    print(header())
    print(f"training step, N={n}, L={length}, V={n_items}; median of {repeats} [fastest, slowest]")
    print(f"{'model':10} {'naive s':>24} {'ours s':>24} {'ours/naive':>11} {'naive MB':>9} {'ours MB':>8}")
    rows = []
    for name in models:
        check_equal(name, length=length, n_items=n_items)
        row: dict[str, Any] = {"model": name}
        for side in SIDES:
            timing = time_calls(prepare_step(name, side, n, length, n_items), repeats=repeats)
            row[side] = timing._asdict()
            row[f"{side}_mb"] = peak_memory(prepare_step, name, side, n, length, n_items)
        row["ratio"] = row["ours"]["median"] / row["naive"]["median"]
        rows.append(row)
        naive, ours = (f"{t['median']:.3f} [{t['low']:.3f}, {t['high']:.3f}]" for t in (row["naive"], row["ours"]))
        print(f"{name:10} {naive:>24} {ours:>24} {row['ratio']:11.3f} {row['naive_mb']:9.0f} {row['ours_mb']:8.0f}")
    if output:
        Path(output).write_text(json.dumps({"header": header(), "rows": rows}, indent=2) + "\n", encoding="utf-8")
    return rows
