"""One step of a session after growing histories: LISA's constant state beside cached keys and values, and no cache."""

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import one_hot, scaled_dot_product_attention

from benchmarks.errors import CheckError
from benchmarks.measure import CPU, Call, Record, time_in_turns
from benchmarks.options import add_list, add_machine, add_number, set_up_device
from benchmarks.report import Panel, Report, Table, by_length, compared, lines, megabytes, spread
from recbole_lisa.attention import FullAttention, LinearAttention, LISAAttention
from recbole_lisa.attention.base import CodedSequences
from recbole_lisa.ops.quantize import Quantized

N_CODEBOOKS, N_CODEWORDS, N_ITEMS = 8, 32, 3417
CACHED = "Transformer, keys and values cached"
CHECK_LENGTH, TOLERANCE = 41, 1e-4


@dataclass(frozen=True)
class Session:
    """Users N after histories of L random items: width D, LISA's decay, device."""

    users: int
    length: int
    width: int
    decay: float = 0.1
    device: torch.device = CPU

    def vectors(self) -> tuple[Tensor, Tensor]:
        """The history and the new item, (N, L + 1, D), and the mask without padding."""
        generator = torch.Generator().manual_seed(1)
        x = torch.randn(self.users, self.length + 1, self.width, generator=generator).to(self.device)
        return x, torch.ones(x.shape[:2], dtype=torch.bool, device=self.device)


class Step(NamedTuple):
    """A row: the step, which returns (N, D), the state that it needs, and the same output computed from scratch."""

    call: Callable[[], Tensor]
    state: Sequence[Tensor]
    from_scratch: Callable[[], Tensor]


def lisa_step(session: Session) -> Step:
    """LISA-256: look up the codes of the new item, update the histogram and read it."""
    torch.manual_seed(3)
    sizes = {"hidden_size": session.width, "n_codebooks": N_CODEBOOKS, "n_codewords": N_CODEWORDS}
    module = LISAAttention(**sizes, decay=session.decay).to(session.device).eval()
    codes = torch.randint(0, N_CODEWORDS, (N_ITEMS, N_CODEBOOKS)).to(session.device, torch.uint8)
    items = torch.randint(1, N_ITEMS, (session.users, session.length + 1)).to(session.device)
    valid, nothing = torch.ones_like(items, dtype=torch.bool), codes.new_empty(0)
    distinct = Quantized(codes, codes.new_empty(N_ITEMS, 0), nothing)
    state = module.state_of(CodedSequences(items[:, :-1], distinct), valid[:, 1:])
    state = state._replace(histogram=state.histogram.float())

    def call() -> Tensor:
        query = codes[items[:, -1]].long()  # (N, B)
        keys = one_hot(query, N_CODEWORDS).to(state.histogram.dtype)  # (N, B, W)
        return module.step(state, Quantized(query, keys, nothing))[0]

    return Step(call, [state.histogram], lambda: module.last(CodedSequences(items, distinct), valid))


def transformer_step(session: Session, *, cache: bool) -> Step:
    """The Transformer: one new key, value and query with the cache, or the vectors of the history alone."""
    torch.manual_seed(3)
    module = FullAttention(hidden_size=session.width).to(session.device).eval()
    x, valid = session.vectors()
    if not cache:
        return Step(lambda: module.last(x, valid), [x], lambda: module(x, valid)[:, -1])
    new = x[:, -1:].clone()
    keys, values = module.key(x), module.value(x)  # (N, L + 1, D); the step writes the last position

    def call() -> Tensor:
        keys[:, -1:], values[:, -1:] = module.key(new), module.value(new)
        attended = scaled_dot_product_attention(module.query(new), keys, values)
        out: Tensor = module.output(attended).squeeze(1)
        return out

    return Step(call, [keys, values], lambda: module.last(x, valid))


def linear_step(session: Session) -> Step:
    """LinearTransformer: update its (D, D) state."""
    torch.manual_seed(3)
    module = LinearAttention(hidden_size=session.width).to(session.device).eval()
    x, valid = session.vectors()
    state = module.state_of(x[:, :-1], valid[:, 1:])
    state = type(state)(*(part.float() for part in state))
    return Step(lambda: module.step(state, x[:, -1])[0], list(state), lambda: module.last(x, valid))


ROWS: dict[str, Callable[[Session], Step]] = {
    "LISA-256": lisa_step,
    CACHED: partial(transformer_step, cache=True),
    "Transformer, no cache": partial(transformer_step, cache=False),
    "LinearTransformer": linear_step,
}


def check_steps(session: Session) -> None:
    """Compare every step with the same attention computed from scratch; raises CheckError."""
    for name, build in ROWS.items():
        step = build(session)
        actual, expected = step.call(), step.from_scratch()
        error = float((actual - expected).abs().max() / expected.abs().max())
        if not error <= TOLERANCE:
            wrong = f"it differs by {error:.2g} of the largest number from attention over the whole history"
            raise CheckError(f"the step of {name} is wrong, nothing was timed: {wrong}, {TOLERANCE} is allowed")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Options of `online`."""
    add_list(parser, "lengths", [128, 2048, 16384, 65536, 1048576], "items in the history")
    add_number(parser, "width", 128, "D")
    add_number(parser, "users", 1, "users in one batch")
    add_number(parser, "decay", 0.1, "decay of LISA's histogram")
    add_number(parser, "row_seconds", 20.0, "skip a row at a length where one step takes longer")
    add_machine(parser, repeats=25)


@torch.no_grad()
def run(options: argparse.Namespace) -> None:
    """Run `python -m benchmarks online`."""
    device = set_up_device(options)
    check_steps(Session(2, CHECK_LENGTH, options.width, options.decay, device))
    report = Report(options, device)
    records: list[Record] = []
    for length in sorted(set(options.lengths)):
        session = Session(options.users, length, options.width, options.decay, device)
        records += measure_steps(session, repeats=options.repeats, seconds=options.row_seconds)
        report.write({"rows": records}, tables(records))
    time = lines(records, lambda record: record["median"] * 1e3)
    state = lines(records, lambda record: record["state_mb"])
    panels = [
        Panel("one step", "items in the history", "ms", time),
        Panel("state", "items in the history", "MB", state),
    ]
    report.finish({"users": options.users, "rows": records}, tables(records), {"length": panels})


def measure_steps(session: Session, *, repeats: int, seconds: float) -> list[Record]:
    """Time one step of every row after histories of one length, in turns; a record for each row."""
    records: dict[str, Record] = {name: {"row": name, "length": session.length} for name in ROWS}

    def build(name: str) -> Call:
        step = ROWS[name](session)
        records[name]["state_mb"] = sum(x.nbytes for x in step.state) / 2**20
        return step.call

    builders = {name: partial(build, name) for name in ROWS}
    timings = time_in_turns(builders, repeats=repeats, device=session.device, seconds=seconds)
    return [records[name] | timing for name, timing in timings.items()]


def tables(records: Sequence[Record]) -> list[Table]:
    """Time of a step, size of the state, and the time against the Transformer's with a cache."""
    return [
        by_length("One step after a history of L items: ms, median [fastest, slowest]", records, spread),
        by_length("State between steps: MB", records, lambda record: megabytes(record["state_mb"])),
        compared("How many times as fast as", CACHED, records),
    ]
