"""A training step of the LISA models, compared with a naive implementation.

The naive side quantises every position of the batch (inputs, targets and negatives; those of LISASoft for its
regulariser, which reads the reconstruction of all three), lets autograd keep every (N, L, B, W) tensor of Algorithm 1
and writes the encoder with torch's own operations. Parameters, loss and optimiser are the models' own on both sides.
"""

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.lisa_reference import lisa_attention_eager, quantize_eager
from benchmarks.measure import CPU, CheckError, Record, in_fresh_process, peak_of_call, time_calls
from benchmarks.options import add_machine, add_number, set_up_device
from benchmarks.report import Report, Table, megabytes, ratio
from benchmarks.standin import Catalogue, build_model
from recbole_lisa.attention.codebook import Codebook
from recbole_lisa.model import losses
from recbole_lisa.model.lisa_recommender import LISARecommender
from recbole_lisa.training.compilation import compile_encoder
from recbole_lisa.training.step import DTYPES

LISA_MODELS = ("LISASoft", "LISAMini", "LISABase")
TOLERANCE = 1e-6  # of the loss and of each gradient in float64, relative to the largest number of the tensor
Batch = dict[str, Tensor]


@dataclass(frozen=True)
class Sizes:
    """A training batch: sequences N, positions L, items V with padding, device; precision and compilation of ours."""

    n: int
    length: int
    n_items: int
    device: torch.device = CPU
    amp: str = "no"
    compiled: bool = False


def add_options(parser: argparse.ArgumentParser) -> None:
    """Options of `step`."""
    parser.add_argument("--models", nargs="+", choices=LISA_MODELS, default=list(LISA_MODELS), help="default all")
    add_number(parser, "batch", 128, "sequences N")
    add_number(parser, "length", 200, "positions L")
    add_number(parser, "items", 3417, "items V, padding included; 3417 is ML-1M's number")
    parser.add_argument("--amp", choices=tuple(DTYPES), default="no", help="mixed precision of our side (default no)")
    parser.add_argument("--compile", action="store_true", help="compile the encoder of our side")
    add_machine(parser)


def run(options: argparse.Namespace) -> None:
    """Run `python -m benchmarks step`."""
    device = set_up_device(options)
    sizes = Sizes(options.batch, options.length, options.items, device, options.amp, options.compile)
    report = Report(options, device)
    rows = [measure_step(name, sizes, repeats=options.repeats) for name in options.models]
    report.finish({"rows": rows}, [step_table(rows, sizes)], {})


def measure_step(name: str, sizes: Sizes, *, repeats: int) -> Record:
    """Check both sides, time them in turns, and measure the memory of each alone; `ratio` is ours to naive."""
    check_equal(name, sizes)
    row: Record = {"model": name}
    alone = peak_of_step if sizes.device.type == "cuda" else partial(in_fresh_process, peak_of_step)
    for side in SIDES:
        row[f"{side}_mb"] = alone(name, side, sizes)
    calls = {side: prepare_step(name, side, sizes) for side in SIDES}
    row |= time_calls(calls, repeats=repeats, device=sizes.device)
    row["ratio"] = row["ours"]["median"] / row["naive"]["median"]
    return row


def check_equal(name: str, sizes: Sizes) -> None:
    """Compare loss and gradients of both sides without dropout; raises CheckError."""
    model = seeded_model(name, sizes).double()
    for module in model.modules():
        if hasattr(module, "p"):
            module.p = 0.0
    batch = {key: x.to(sizes.device) for key, x in random_batch(4, sizes.length, sizes.n_items).items()}
    results = []
    for side in SIDES.values():
        loss = side(model, batch)
        results.append([loss, *torch.autograd.grad(loss, list(model.parameters()))])
    for expected, actual in zip(*results, strict=True):
        error = float((expected - actual).detach().abs().max())
        if not error <= TOLERANCE * float(expected.detach().abs().max()) + 1e-9:
            wrong = f"its loss or a gradient differs from the naive one by {error:.2g}"
            raise CheckError(f"the step of {name} is wrong, nothing was timed: {wrong}")


def peak_of_step(name: str, side: str, sizes: Sizes) -> float:
    """MB that a step takes above model and batch; on the CPU, call it in a fresh process."""
    if sizes.device.type == "cpu":
        torch.set_num_threads(1)
        prepare_step(name, side, Sizes(1, 1, sizes.n_items))()  # loads code, which must not count
    return peak_of_call(prepare_step(name, side, sizes), sizes.device).extra_mb


def prepare_step(name: str, side: str, sizes: Sizes) -> Callable[[], object]:
    """One side, ready to run forward, backward and Adam; only ours has mixed precision and a compiled encoder."""
    model = seeded_model(name, sizes)
    amp = sizes.amp if side == "ours" else "no"
    if side == "ours" and sizes.compiled:
        compile_encoder(model)
    batch = {key: x.to(sizes.device) for key, x in random_batch(sizes.n, sizes.length, sizes.n_items).items()}
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, fused=True)
    scaler = torch.amp.GradScaler(sizes.device.type, enabled=amp == "fp16")

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast(sizes.device.type, dtype=DTYPES[amp], enabled=amp != "no"):
            loss = SIDES[side](model, batch)
        torch.autograd.backward(scaler.scale(loss))
        scaler.step(optimizer)
        scaler.update()

    return step


def seeded_model(name: str, sizes: Sizes) -> LISARecommender:
    """The model with the settings of its yaml and the same parameters at every call."""
    torch.manual_seed(0)
    model: LISARecommender = build_model(name, catalogue=Catalogue(sizes.n_items), max_length=sizes.length)
    model.to(sizes.device)
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


def model_loss(model: LISARecommender, batch: Batch) -> Tensor:
    """The model's own loss."""
    loss = model.calculate_loss(batch)
    return torch.stack(loss).sum() if isinstance(loss, tuple) else loss


def naive_loss(model: LISARecommender, batch: Batch) -> Tensor:
    """The same loss with the quantiser at every position, eager attention, and an encoder in torch's operations."""
    items = batch["item_id_list"]
    encoder: Any = model.encoder
    n, length = items.shape
    attention, block = encoder.attentions[0], encoder.blocks[0]
    drop = partial(nn.functional.dropout, p=encoder.dropout.p, training=model.training)
    x = model.embed(items.flatten())  # (N * L, D)
    codes, assignment, y = (part.view(n, length, *part.shape[1:]) for part in _quantize(model.codebook, x))
    table, values = attention.table_and_values()
    options = {"assignment": assignment, "decay": float(attention.decay), "straight_through": attention.codebook.hard}
    attended = lisa_attention_eager(codes, table, values, **options)
    first, act, _, last = block.feed_forward
    h = block.attention_norm(drop(y + encoder.position_embedding.weight[:length]) + drop(attended))
    hidden = block.feed_forward_norm(h + drop(last(drop(act(first(h)))))).flatten(0, 1)  # (N * L, D)
    others = torch.cat([batch[key].flatten() for key in ("target_id_list", "neg_target_id_list")])
    x_others = model.embed(others)  # (2 * N * L, D)
    target = {"LISASoft": None, "LISAMini": "target_codebook", "LISABase": "codebook"}[type(model).__name__]
    scored = x_others if target is None else _quantize(getattr(model, target), x_others)[2]
    positive, negative = ((hidden * side).sum(dim=-1) for side in scored.view(2, n * length, -1))
    loss = losses.binary_cross_entropy(positive, negative.unsqueeze(1))
    if model.reconstruction_weight:
        ids, reconstructed = torch.cat([items.flatten(), others]), _quantize(model.codebook, x_others)[2]
        squares = (torch.cat([x, x_others]) - torch.cat([y.flatten(0, 1), reconstructed]).detach()).square()
        distinct, inverse = torch.unique(ids, return_inverse=True)
        positions = torch.arange(len(ids), device=ids.device)
        first_of_each = torch.full_like(distinct, len(ids)).scatter_reduce(0, inverse, positions, "amin")
        loss = loss + model.reconstruction_weight * squares.sum(dim=-1)[first_of_each].mean()
    return loss


SIDES: dict[str, Callable[[LISARecommender, Batch], Tensor]] = {"naive": naive_loss, "ours": model_loss}


def _quantize(codebook: Codebook | None, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    assert codebook is not None and codebook.bilinear is not None
    return quantize_eager(
        x, codebook.codewords, bilinear=codebook.bilinear, temperature=codebook.temperature, hard=codebook.hard
    )


def step_table(rows: list[Record], sizes: Sizes) -> Table:
    """One line a model."""
    lines = []
    for row in rows:
        naive, ours = (f"{t['median']:.3f} [{t['low']:.3f}, {t['high']:.3f}]" for t in (row["naive"], row["ours"]))
        memory = [megabytes(row["naive_mb"]), megabytes(row["ours_mb"]), ratio(row["naive_mb"] / row["ours_mb"])]
        lines.append([row["model"], naive, ours, ratio(1 / row["ratio"]), *memory])
    how = f"ours with amp {sizes.amp}{', compiled' if sizes.compiled else ''}; median [fastest, slowest]"
    title = f"Training step, N={sizes.n}, L={sizes.length}, V={sizes.n_items}, {how}"
    return Table(title, ["model", "naive s", "ours s", "faster", "naive MB", "ours MB", "less memory"], lines)
