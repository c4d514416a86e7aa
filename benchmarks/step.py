"""A whole training step of the models beside the same mathematics written naively.

The naive side quantises every position of the batch (inputs, targets and negatives; those of LISASoft for its
regulariser, which reads the reconstruction of all three), lets autograd keep every (N, L, B, W) tensor of Algorithm 1
and writes the encoder with torch's own operations; parameters, loss and optimiser are the models' own on both sides.
"""

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.errors import GateError
from benchmarks.machine import set_up_device
from benchmarks.measure import CPU, in_fresh_process, peak_of_call, time_in_turns
from benchmarks.plots import Figure, Panel
from benchmarks.report import Output, Table, heading, megabytes, ratio
from benchmarks.standin import Catalogue, build_model
from recbole_lisa.attention.codebook import Codebook
from recbole_lisa.errors import UsageError
from recbole_lisa.model import losses
from recbole_lisa.model.lisa_recommender import LISARecommender
from recbole_lisa.ops.lisa import naive as naive_ops
from recbole_lisa.training.compilation import compile_encoder
from recbole_lisa.training.step import DTYPES

WARM_UP = 2
"""Steps before the first timed one: the second of them may compile once more, for any size."""
LISA_MODELS = ("LISABase", "LISASoft", "LISAMini")
Batch = dict[str, Tensor]


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
    attention = model.encoder.attentions[0]
    table, values = attention.table_and_values()
    attended = naive_ops.lisa_attention_eager(
        codes.view(n, length, -1),
        table,
        values,
        assignment=assignment.view(n, length, *assignment.shape[1:]),
        decay=float(attention.decay),
    )
    stream = _drop(model, y.view(n, length, -1) + model.encoder.position_embedding.weight[:length])
    hidden = _encode(model, stream, attended).flatten(0, 1)  # (N * L, D)
    others = torch.cat([batch[key].flatten() for key in ("target_id_list", "neg_target_id_list")])
    x_others = model.embed(others)  # (2 * N * L, D)
    positive, negative = ((hidden * side).sum(dim=-1) for side in _target(model, x_others).view(2, n * length, -1))
    loss = losses.binary_cross_entropy(positive, negative.unsqueeze(1))
    if model.reconstruction_weight:
        squares = (torch.cat([x, x_others]) - torch.cat([y, _quantize(model.codebook, x_others)[2]]).detach()).square()
        distinct = _first_of_each(torch.cat([items.flatten(), others]))
        loss = loss + model.reconstruction_weight * squares.sum(dim=-1)[distinct].mean()
    return loss


def _first_of_each(ids: Tensor) -> Tensor:
    """Where each distinct id stands first."""
    distinct, inverse = ids.unique(return_inverse=True)
    positions = torch.arange(len(ids), device=ids.device)
    return torch.full_like(distinct, len(ids)).scatter_reduce(0, inverse, positions, "amin")


def _drop(model: LISARecommender, x: Tensor) -> Tensor:
    return nn.functional.dropout(x, model.encoder.dropout.p, model.training)


def _encode(model: LISARecommender, stream: Tensor, attended: Tensor) -> Tensor:
    block = model.encoder.blocks[0]
    first, act, _, last = block.feed_forward
    h = block.attention_norm(stream + _drop(model, attended))
    out: Tensor = block.feed_forward_norm(h + _drop(model, last(_drop(model, act(first(h))))))
    return out


def _quantize(codebook: Codebook, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    assert codebook.bilinear is not None
    return naive_ops.quantize_eager(
        x, codebook.codewords, bilinear=codebook.bilinear, temperature=codebook.temperature, hard=codebook.hard
    )


def _target(model: LISARecommender, x: Tensor) -> Tensor:
    name = type(model).__name__
    if name == "LISASoft":
        return x
    return _quantize(model.target_codebook if name == "LISAMini" else model.codebook, x)[2]


SIDES: dict[str, Callable[[LISARecommender, Batch], Tensor]] = {"naive": naive_loss, "ours": fused_loss}


@dataclass(frozen=True)
class Sizes:
    """A training batch: sequences N, positions L, items V with padding, and where it lies; and how ours computes it."""

    n: int
    length: int
    n_items: int
    device: torch.device = CPU
    amp: str = "no"
    compiled: bool = False


def seeded_model(name: str, sizes: Sizes) -> LISARecommender:
    """The model with the settings of its yaml; the same parameters at every call."""
    torch.manual_seed(0)
    model: LISARecommender = build_model(name, catalogue=Catalogue(sizes.n_items), max_length=sizes.length)
    return model.to(sizes.device).train()


def prepare_step(name: str, side: str, sizes: Sizes) -> Callable[[], object]:
    """Everything of one side but the call: forward, backward and an Adam step.

    Our side goes the way of a run, with its mixed precision and compiled encoder; the naive side is float32.
    """
    model = seeded_model(name, sizes)
    amp = sizes.amp if side == "ours" else "no"
    if side == "ours" and sizes.compiled:
        compile_encoder(model)
    batch = {key: x.to(sizes.device) for key, x in random_batch(sizes.n, sizes.length, sizes.n_items).items()}
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    scaler = torch.amp.GradScaler(sizes.device.type, enabled=amp == "fp16")

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast(sizes.device.type, dtype=DTYPES[amp], enabled=amp != "no"):
            loss = SIDES[side](model, batch)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    return step


def peak_of_step(name: str, side: str, sizes: Sizes) -> float:
    """MB that a step takes above model and batch; on the CPU this belongs into a fresh process.

    A step of one position goes before, so that code which is loaded at the first call does not count.
    """
    if sizes.device.type == "cpu":
        torch.set_num_threads(1)
        prepare_step(name, side, Sizes(1, 1, sizes.n_items))()
    return peak_of_call(prepare_step(name, side, sizes), sizes.device).extra_mb


def check_equal(name: str, sizes: Sizes) -> None:
    """Loss and gradients of both sides agree, dropout off, before anything is timed.

    Raises:
        GateError: they differ.
    """
    model = seeded_model(name, sizes).double()
    for module in model.modules():
        if hasattr(module, "p"):
            module.p = 0.0
    batch = {key: x.to(sizes.device) for key, x in random_batch(4, sizes.length, sizes.n_items).items()}
    results = []
    for side in SIDES.values():
        loss = side(model, batch)
        results.append([loss, *torch.autograd.grad(loss, list(model.parameters()))])
    for expected, ours in zip(*results, strict=True):
        error = float((expected - ours).detach().abs().max())
        if not error <= 1e-6 * float(expected.detach().abs().max()) + 1e-9:
            raise GateError(
                f"the step of {name} is wrong, nothing was timed: its loss or a gradient differs from the expected one "
                f"by {error:.2g}"
            )


def measure_step(name: str, sizes: Sizes, *, repeats: int) -> dict[str, Any]:
    """Time both sides in turns, and their memory each on its own.

    Args:
        name: Model.
        sizes: Of the batch.
        repeats: Timed steps of each side.

    Returns:
        model, seconds and MB of both sides, and ratio, ours to naive.
    """
    check_equal(name, sizes)
    row: dict[str, Any] = {"model": name}
    for side in SIDES:
        alone = peak_of_step if sizes.device.type == "cuda" else _peak_in_fresh_process
        row[f"{side}_mb"] = alone(name, side, sizes)
    steps = {side: prepare_step(name, side, sizes) for side in SIDES}
    for step in steps.values():
        for _ in range(WARM_UP):
            step()
    for side, timing in time_in_turns(steps, dict.fromkeys(steps, repeats), device=sizes.device).items():
        if isinstance(timing, Exception):
            raise timing
        row[side] = timing._asdict()
    row["ratio"] = row["ours"]["median"] / row["naive"]["median"]
    return row


def _peak_in_fresh_process(name: str, side: str, sizes: Sizes) -> float:
    return float(in_fresh_process(peak_of_step, name, side, sizes))


def run(options: argparse.Namespace) -> None:
    """`python -m benchmarks step`: see its --help."""
    for name in options.models:
        if name not in LISA_MODELS:
            raise UsageError(f"benchmark step has no naive twin of '{name}': known are {', '.join(LISA_MODELS)}")
    device = set_up_device(options.device, options.threads)
    output = Output(options.output, "step", overwrite=options.overwrite)
    sizes = Sizes(options.batch, options.length, options.items, device, options.amp, options.compile)
    title = heading(options.command, device)
    print(title)
    rows = [measure_step(name, sizes, repeats=options.repeats) for name in options.models]
    table = step_table(rows, sizes, options.repeats)
    print("\n" + table.markdown(), end="")
    output.tell(output.write(title, {"rows": rows}, [table], [step_figure(rows)]))


def step_table(rows: Sequence[dict[str, Any]], sizes: Sizes, repeats: int) -> Table:
    """One line a model."""
    columns = ("model", "naive s", "ours s", "faster", "naive MB", "ours MB", "less memory")
    lines = []
    for row in rows:
        naive, ours = (f"{t['median']:.3f} [{t['low']:.3f}, {t['high']:.3f}]" for t in (row["naive"], row["ours"]))
        memory = [megabytes(row["naive_mb"]), megabytes(row["ours_mb"]), ratio(row["naive_mb"] / row["ours_mb"])]
        lines.append([row["model"], naive, ours, ratio(1 / row["ratio"]), *memory])
    how = ", compiled" if sizes.compiled else ""
    size = f"N={sizes.n}, L={sizes.length}, V={sizes.n_items}, ours with amp {sizes.amp}{how}"
    return Table(f"Training step, {size}; median of {repeats} [fastest, slowest]", columns, lines)


def step_figure(rows: Sequence[dict[str, Any]]) -> Figure:
    """Memory against seconds, a point for each side of each model."""
    points = {f"{row['model']} {side}": [(row[side]["median"], row[f"{side}_mb"])] for row in rows for side in SIDES}
    return Figure("sides", [Panel("training step", "s", "MB above model and batch", points)])
