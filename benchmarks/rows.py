"""The rows of the attention benchmark: LISA's op and modules, the vanilla Transformer, and every other mechanism.

Each row is a function from a Problem to a Case. In the sub-layer, LISA reads the codes of its items from the table of
all items that the models keep for inference, and the others start from vectors (N, L, D): looking up the residual
stream costs both sides the same and is in neither.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot, scaled_dot_product_attention

from benchmarks.backends import fastest_backend
from benchmarks.problem import Case, Problem
from recbole_lisa.attention import MECHANISMS, OPTIONAL_MECHANISMS, FullAttention, LISAAttention, build_attention
from recbole_lisa.attention.base import CodedSequences
from recbole_lisa.attention.gla import missing_requirement
from recbole_lisa.ops.lisa import naive as naive_ops
from recbole_lisa.ops.lisa.attention import lisa_attention_items
from recbole_lisa.ops.quantize import Quantized

N_CODEBOOKS = 8
LISA_NAIVE, LISA_ONE_PRODUCT = "LISA-128 naive", "LISA-128 naive, one product"
LISA_ROWS = ("LISA-128", "LISA-128 soft", "LISA-256")
NAIVE, SDPA = "Transformer naive", "Transformer SDPA"
FLOOR = "one matmul (floor)"
MECHANISM_SETTINGS: dict[str, tuple[str, dict[str, Any]]] = {
    "Linformer": ("linformer", {"n_projected": 128}),
    "Reformer LSH-1": ("reformer", {"n_hashes": 1}),
    "Reformer LSH-4": ("reformer", {"n_hashes": 4}),
    "Sinkhorn-32": ("sinkhorn", {"bucket_size": 32}),
    "Routing-32": ("routing", {"window_size": 32}),
    "Clustered-100": ("clustered", {"n_clusters": 100}),
    "LinearTransformer": ("linear", {}),
    "GLA": ("gla", {}),
}
"""Row -> mechanism and settings, those of the paper where it has the row."""
Row = Callable[[Problem], Case]
Attend = Callable[..., Tensor]


def attend_fused(
    items: Tensor, codes: Tensor, table: Tensor, values: Tensor, *, assignment: Tensor | None, decay: float
) -> Tensor:
    """The op: items (N, L), codes (V, B), table (B, W, W), values (B, W, D), assignment (V, B, W) -> (N, L, D)."""
    return lisa_attention_items(items, codes, table, values, assignment=assignment, decay=decay)


def attend_naively(
    items: Tensor,
    codes: Tensor,
    table: Tensor,
    values: Tensor,
    *,
    assignment: Tensor | None,
    decay: float,
    formulation: Attend = naive_ops.lisa_attention_per_codebook,
) -> Tensor:
    """Algorithm 1 written out, as attend_fused; keys of all positions are gathered first, as (N, L, B, W)."""
    query = codes[items].long()  # (N, L, B)
    if assignment is None:
        keys = values.new_zeros(*query.shape, table.shape[-1]).scatter_(-1, query.unsqueeze(-1), 1.0)
    else:
        keys = assignment[items]
    return formulation(query, table, values, assignment=keys, decay=decay)


attend_in_one_product = functools.partial(attend_naively, formulation=naive_ops.lisa_attention_eager)
"""As attend_naively, with one product for all codebooks in place of one for each, which the paper writes."""


def attend_quadratically(
    items: Tensor, codes: Tensor, table: Tensor, values: Tensor, *, assignment: Tensor | None, decay: float
) -> Tensor:
    """The slow twin, as attend_fused; on the CPU only."""
    keys = None if assignment is None else assignment[items]
    return naive_ops.lisa_attention(codes[items].long(), table, values, assignment=keys, decay=decay)


def lisa(problem: Problem, *, n_codewords: int, hard: bool = True, attend: Attend | None = None) -> Case:
    """LISA with B = 8.

    Args:
        problem: What it solves.
        n_codewords: W.
        hard: Keys are codes, as in LISABase and LISAMini; False: soft assignments, as in LISASoft.
        attend: What to call in place of the models' own way.
    """
    items = problem.integers(problem.n_items, problem.n, problem.length, seed=1, low=1)  # (N, L)
    codes = problem.integers(n_codewords, problem.n_items, N_CODEBOOKS, seed=2).to(torch.uint8)  # (V, B)
    keys = _keys(problem, codes, n_codewords, hard=hard)
    given = [items, codes, *([] if keys is None else [keys])]
    if problem.part == "core":
        table = problem.normal(N_CODEBOOKS, n_codewords, n_codewords, seed=4)
        values = problem.normal(N_CODEBOOKS, n_codewords, problem.width, seed=5)
        kernel = attend or attend_fused
        call = functools.partial(kernel, items, codes, table, values, assignment=keys, decay=problem.decay)
        return Case(problem, call, [*given, table, values])
    torch.manual_seed(6)
    module = LISAAttention(
        hidden_size=problem.width, n_codebooks=N_CODEBOOKS, n_codewords=n_codewords, hard=hard, decay=problem.decay
    )
    module = module.to(problem.device, problem.dtype).eval()
    # The quantiser ran when the table of codes was made; its own weight plays no part here.
    parameters = [module.codebook.codewords, module.query, module.key, module.value]
    valid = torch.ones_like(items, dtype=torch.bool)
    distinct = Quantized(codes, codes.new_empty(len(codes), 0) if keys is None else keys, codes.new_empty(0))

    def forward() -> Tensor:
        if attend is None:
            return module(CodedSequences(items, distinct), valid)
        return attend(items, codes, *module.table_and_values(), assignment=keys, decay=problem.decay)

    return Case(problem, forward, [*given, *parameters])


def _keys(problem: Problem, codes: Tensor, n_codewords: int, *, hard: bool) -> Tensor | None:
    """Assignments (V, B, W) of all items; None where codes alone say it."""
    if not hard:
        shape = (problem.n_items, N_CODEBOOKS, n_codewords)
        soft = torch.randn(shape, generator=torch.Generator().manual_seed(3)).softmax(dim=-1)
        codes.copy_(soft.argmax(dim=-1))  # as in the models, the best codeword is the query's
        return problem.place(soft).requires_grad_(problem.backward)
    if problem.backward:
        return problem.place(one_hot(codes.long(), n_codewords)).requires_grad_()
    return None


def vanilla(problem: Problem, *, naive: bool) -> Case:
    """Causal softmax attention with one head: written with an (L, L) matrix, or by torch's fused kernels."""
    shape = (problem.n, problem.length, problem.width)
    if problem.part == "core":
        tensors = [problem.normal(*shape, seed=seed) for seed in (1, 2, 3)]
        if naive:
            return Case(problem, functools.partial(naive_ops.causal_softmax_attention, *tensors), tensors)
        query, key, value = (x.unsqueeze(1) for x in tensors)

        def fused() -> Tensor:
            return scaled_dot_product_attention(query, key, value, is_causal=True).squeeze(1)

        return _on_fastest_backend(problem, fused, tensors)
    torch.manual_seed(6)
    module = FullAttention(hidden_size=problem.width).to(problem.device, problem.dtype).eval()
    x = problem.normal(*shape, seed=1)
    valid = torch.ones(problem.n, problem.length, dtype=torch.bool, device=problem.device)
    tensors = [x, *module.parameters()]
    if not naive:
        return _on_fastest_backend(problem, lambda: module(x, valid), tensors)

    def forward() -> Tensor:
        attended = naive_ops.causal_softmax_attention(module.query(x), module.key(x), module.value(x))
        out: Tensor = module.output(attended) * valid.unsqueeze(-1)
        return out

    return Case(problem, forward, tensors)


def _on_fastest_backend(problem: Problem, forward: Callable[[], Tensor], tensors: list[Tensor]) -> Case:
    """On a GPU, the row of the fastest kernel that serves this problem; its name is the note."""
    note, chosen = fastest_backend(Case(problem, forward, tensors), problem.device)

    def call() -> Tensor:
        with chosen():
            return forward()

    return Case(problem, call, tensors, note)


def mechanism(problem: Problem, *, name: str, settings: dict[str, Any]) -> Case:
    """Any mechanism of the package; for the core, the projections of width D to D are left out."""
    torch.manual_seed(6)
    module = build_attention(name, hidden_size=problem.width, max_length=problem.length, **settings)
    module = module.to(problem.device, problem.dtype).eval()
    if problem.part == "core":
        without_projections(module, problem.width)
    x = problem.normal(problem.n, problem.length, problem.width, seed=1)
    valid = torch.ones(problem.n, problem.length, dtype=torch.bool, device=problem.device)
    return Case(problem, lambda: module(x, valid), [x, *module.parameters(), *module.buffers()])


class PassOn(nn.Module):
    """Stands where a projection was; has its weight's dtype, and no weight.

    Args:
        like: The projection's weight.
    """

    def __init__(self, like: Tensor) -> None:
        super().__init__()
        self.weight = like.new_empty(0)

    def forward(self, x: Tensor) -> Tensor:
        """x itself."""
        return x


def without_projections(module: nn.Module, width: int) -> None:
    """Replace every linear layer from D to D inside a mechanism."""
    for name, layer in list(module.named_modules()):
        if isinstance(layer, nn.Linear) and layer.in_features == layer.out_features == width:
            parent, _, last = name.rpartition(".")
            setattr(module.get_submodule(parent), last, PassOn(layer.weight.detach()))


def floor(problem: Problem) -> Case:
    """What no LISA-128 can avoid: one (N * L, 128) x (128, D) product into a given output."""
    rows = problem.normal(problem.n * problem.length, 128, seed=1).detach()
    values = problem.normal(128, problem.width, seed=2).detach()
    out = rows.new_empty(len(rows), problem.width)
    return Case(problem, lambda: torch.mm(rows, values, out=out), [rows, values, out])


def rows_of(part: str, *, backward: bool) -> dict[str, Row]:
    """The rows of one part, by name, in the order of the tables."""
    rows: dict[str, Row] = {
        "LISA-128": functools.partial(lisa, n_codewords=16),
        "LISA-128 soft": functools.partial(lisa, n_codewords=16, hard=False),
        "LISA-256": functools.partial(lisa, n_codewords=32),
        LISA_NAIVE: functools.partial(lisa, n_codewords=16, attend=attend_naively),
        LISA_ONE_PRODUCT: functools.partial(lisa, n_codewords=16, attend=attend_in_one_product),
        NAIVE: functools.partial(vanilla, naive=True),
        SDPA: functools.partial(vanilla, naive=False),
    }
    served = [*MECHANISMS, *(OPTIONAL_MECHANISMS if missing_requirement() is None else ())]
    for row, (name, settings) in MECHANISM_SETTINGS.items():
        if name in served:
            rows[row] = functools.partial(mechanism, name=name, settings=settings)
    known = {name for name, _ in MECHANISM_SETTINGS.values()} | {"full", "lisa"}
    for name in served:
        if name not in known:
            rows[name] = functools.partial(mechanism, name=name, settings={})
    if part == "core" and not backward:
        rows[FLOOR] = floor
    return rows
