"""The rows of the online benchmark: one user's (or several users') next step, each in its own way."""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import one_hot, scaled_dot_product_attention

from benchmarks.errors import GateError
from recbole_lisa.attention import FullAttention, LinearAttention, LISAAttention
from recbole_lisa.attention.base import CodedSequences
from recbole_lisa.ops.lisa.attention import read_histogram
from recbole_lisa.ops.lisa.histogram import histogram_step, last_histogram
from recbole_lisa.ops.quantize import Quantized

N_CODEBOOKS, N_CODEWORDS, N_ITEMS = 8, 32, 3417
CACHED = "Transformer, keys and values kept"
GATE_LENGTH, GATE_TOLERANCE = 41, 1e-4


@dataclass(frozen=True)
class Session:
    """Users after their history, of random items.

    Attributes:
        users: that go on together, N.
        length: items in each history, L.
        width: D.
        decay: of LISA's histogram.
        device: where.
    """

    users: int
    length: int
    width: int
    decay: float
    device: torch.device

    def vectors(self) -> Tensor:
        """The history and the new item, (N, L + 1, D)."""
        generator = torch.Generator().manual_seed(1)
        return torch.randn(self.users, self.length + 1, self.width, generator=generator).to(self.device)

    def items(self) -> Tensor:
        """The same as item ids, (N, L + 1)."""
        generator = torch.Generator().manual_seed(2)
        return torch.randint(1, N_ITEMS, (self.users, self.length + 1), generator=generator).to(self.device)


@dataclass
class Step:
    """A row: the step as a call that returns (N, D), what must be kept for it, and the same computed from scratch."""

    call: Callable[[], Tensor]
    kept: Sequence[Tensor]
    from_scratch: Callable[[], Tensor]

    @property
    def state_mb(self) -> float:
        """MB kept for all users."""
        return sum(x.numel() * x.element_size() for x in self.kept) / 2**20


def lisa_step(session: Session, *, keep_tables: bool) -> Step:
    """LISA-256: the new item's codes are looked up, the histogram moves on and is read.

    Args:
        session: The users.
        keep_tables: Compute the inner-product table and the projected codebooks once, as the paper does; False: the
            module's own step, which computes them from its parameters each time.
    """
    torch.manual_seed(3)
    module = LISAAttention(
        hidden_size=session.width, n_codebooks=N_CODEBOOKS, n_codewords=N_CODEWORDS, decay=session.decay
    )
    module = module.to(session.device).eval()
    generator = torch.Generator().manual_seed(4)
    codes = torch.randint(0, N_CODEWORDS, (N_ITEMS, N_CODEBOOKS), generator=generator).to(session.device, torch.uint8)
    items = session.items()
    history = items[:, :-1]
    decay = torch.tensor(session.decay, dtype=torch.float64, device=session.device)
    full = torch.ones_like(items, dtype=torch.bool)
    histogram = last_histogram(
        history, codes.long(), N_CODEWORDS, assignment=None, decay=decay, valid=full[:, 1:]
    ).float()
    state = module.init_state(session.users)._replace(histogram=histogram)
    table, values = module.table_and_values()
    nothing = codes.new_empty(0)

    def call() -> Tensor:
        query = codes[items[:, -1]].long()  # (N, B)
        keys = one_hot(query, N_CODEWORDS).to(histogram.dtype)  # (N, B, W)
        if not keep_tables:
            return module.step(state, Quantized(query, keys, nothing))[0]
        return read_histogram(histogram_step(state.histogram, keys, decay), query, table, values)

    distinct = Quantized(codes, codes.new_empty(N_ITEMS, 0), nothing)
    return Step(call, [histogram], lambda: module.last(CodedSequences(items, distinct), full))


def _full(session: Session) -> tuple[FullAttention, Tensor, Tensor]:
    """The module, the vectors (N, L + 1, D), and the mask of what is real: everything."""
    torch.manual_seed(3)
    module = FullAttention(hidden_size=session.width).to(session.device).eval()
    x = session.vectors()
    return module, x, torch.ones(x.shape[:2], dtype=torch.bool, device=session.device)


def cached_step(session: Session) -> Step:
    """The Transformer: one new key and value, one query over all that were kept."""
    module, x, everything = _full(session)
    new = x[:, -1:].clone()
    keys, values = (layer(x) for layer in (module.key, module.value))  # (N, L + 1, D); the step writes the last one

    def call() -> Tensor:
        keys[:, -1:], values[:, -1:] = module.key(new), module.value(new)
        attended = scaled_dot_product_attention(module.query(new), keys, values)
        out: Tensor = module.output(attended).squeeze(1)
        return out

    return Step(call, [keys, values], lambda: module.last(x, everything))


def uncached_step(session: Session) -> Step:
    """The Transformer with only the history's vectors: all keys and values anew."""
    module, x, everything = _full(session)
    return Step(lambda: module.last(x, everything), [x], lambda: module(x, everything)[:, -1])


def linear_step(session: Session) -> Step:
    """LinearTransformer: its (D, D) state moves on."""
    torch.manual_seed(3)
    module = LinearAttention(hidden_size=session.width).to(session.device).eval()
    x = session.vectors()
    state = module.init_state(session.users)
    if session.length < 2**12:  # a step costs the same after any history; a short one is enough to check it by
        for position in range(session.length):
            _, state = module.step(state, x[:, position])
    everything = torch.ones(x.shape[:2], dtype=torch.bool, device=session.device)
    return Step(lambda: module.step(state, x[:, -1])[0], list(state), lambda: module.last(x, everything))


ROWS: dict[str, Callable[[Session], Step]] = {
    "LISA-256": functools.partial(lisa_step, keep_tables=False),
    "LISA-256, tables kept": functools.partial(lisa_step, keep_tables=True),
    CACHED: cached_step,
    "Transformer, nothing kept": uncached_step,
    "LinearTransformer": linear_step,
}
"""Name -> row."""


def check_steps(session: Session) -> None:
    """Every step equals the same attention computed from scratch.

    Raises:
        GateError: one does not.
    """
    for name, build in ROWS.items():
        step = build(session)
        found, wanted = step.call(), step.from_scratch()
        error = float((found - wanted).abs().max() / wanted.abs().max())
        if not error <= GATE_TOLERANCE:
            raise GateError(
                f"the step of {name} is wrong, nothing was timed: it differs by {error:.2g} of the largest number from "
                f"attention over the whole history of {session.length}, {GATE_TOLERANCE} is allowed"
            )
