"""The rows of the attention benchmark: LISA, the vanilla Transformer, and every other mechanism.

In the sub-layer, LISA reads the codes of its items from the table that the models keep for inference, and the others
start from vectors (N, L, D). Reading the residual stream costs both sides the same and is in neither.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import one_hot, scaled_dot_product_attention

from benchmarks import lisa_reference
from benchmarks.measure import CheckError
from benchmarks.references import causal_softmax_attention
from recbole_lisa.attention import FullAttention, LISAAttention, build_attention
from recbole_lisa.attention.base import CodedSequences
from recbole_lisa.attention.gla import missing_requirement
from recbole_lisa.ops.lisa.attention import lisa_attention_items
from recbole_lisa.ops.quantize import Quantized

N_CODEBOOKS = 8
LISA_NAIVE, LISA_ONE_PRODUCT = "LISA-128 naive", "LISA-128 naive, one product"
LISA_ROWS = ("LISA-128", "LISA-128 soft", "LISA-256", "LISA-1024")
NAIVE, SDPA = "Transformer naive", "Transformer SDPA"
# Largest difference from the reference, relative to the largest number of its tensor.
TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4, torch.bfloat16: 5e-2, torch.float16: 1e-2}
# A tensor smaller than this, relative to the largest tensor, is compared with the largest: it may be exactly 0.
SMALL_TENSOR = 5e-2
Attend = Callable[..., Tensor]


@dataclass(frozen=True)
class Problem:
    """Sizes and settings of one attention."""

    part: str  # sublayer: the models' modules with their projections, or LISA's tables; core: the attention between
    width: int  # D
    n: int = 1
    length: int = 1
    dtype: torch.dtype = torch.float32
    device: torch.device = torch.device("cpu")
    backward: bool = False
    decay: float = 0.0  # of LISA's histogram
    n_items: int = 3417  # V

    def normal(self, *shape: int, seed: int) -> Tensor:
        """Standard-normal tensor, the same for every dtype and device; a leaf if backward."""
        values = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
        return values.to(self.device, self.dtype).requires_grad_(self.backward)

    def integers(self, high: int, *shape: int, seed: int, low: int = 0) -> Tensor:
        """Random integers from low to high - 1, the same for every device."""
        return torch.randint(low, high, shape, generator=torch.Generator().manual_seed(seed)).to(self.device)

    def everything(self) -> Tensor:
        """The mask (N, L) of sequences without padding."""
        return torch.ones(self.n, self.length, dtype=torch.bool, device=self.device)


class Case:
    """A row that is ready to run: its forward pass (N, L, D), and its inputs and parameters."""

    def __init__(self, problem: Problem, forward: Callable[[], Tensor], tensors: Sequence[Tensor]) -> None:
        self.forward = forward
        self.held_mb = sum(x.nbytes for x in tensors) / 2**20
        self.leaves = [x for x in tensors if x.requires_grad]
        shape = (problem.n, problem.length, problem.width)
        self.gradient = problem.normal(*shape, seed=9).detach() if problem.backward else None

    def __call__(self) -> list[Tensor]:
        """Attend once: the output, and with backward the gradient of every leaf."""
        with torch.set_grad_enabled(self.gradient is not None):
            out = self.forward()
        if self.gradient is None:
            return [out]
        return [out, *torch.autograd.grad(out, self.leaves, self.gradient, allow_unused=True, materialize_grads=True)]


Build = Callable[[Problem], Case]


def gathered(attend: Attend) -> Attend:
    """A formulation of `lisa_reference` with the arguments of `lisa_attention_items`.

    Codes (N, L, B) and keys (N, L, B, W) of all positions exist at once.
    """

    def call(
        items: Tensor, codes: Tensor, table: Tensor, values: Tensor, *, assignment: Tensor | None, decay: float
    ) -> Tensor:
        query = codes[items].long()
        keys = one_hot(query, table.shape[-1]).to(values.dtype) if assignment is None else assignment[items]
        return attend(query, table, values, assignment=keys, decay=decay)

    return call


def lisa(problem: Problem, *, n_codewords: int, hard: bool = True, attend: Attend | None = None) -> Case:
    """LISA with B = 8: keys are codes, as in LISABase and LISAMini, or soft assignments, as in LISASoft.

    `attend` replaces the models' own function.
    """
    items = problem.integers(problem.n_items, problem.n, problem.length, seed=1, low=1)  # (N, L)
    codes = problem.integers(n_codewords, problem.n_items, N_CODEBOOKS, seed=2).to(torch.uint8)  # (V, B)
    keys = one_hot(codes.long(), n_codewords) if problem.backward else None  # (V, B, W)
    if not hard:
        exact = replace(problem, dtype=torch.float32, backward=False)
        keys = exact.normal(problem.n_items, N_CODEBOOKS, n_codewords, seed=3).softmax(dim=-1)
        codes = keys.argmax(dim=-1).to(torch.uint8)  # as in the models, the query is the best codeword
    if keys is not None:
        keys = keys.to(problem.dtype).requires_grad_(problem.backward)
    inputs = [items, codes, *([] if keys is None else [keys])]
    if problem.part == "core":
        table = problem.normal(N_CODEBOOKS, n_codewords, n_codewords, seed=4)
        values = problem.normal(N_CODEBOOKS, n_codewords, problem.width, seed=5)
        own = partial(lisa_attention_items, straight_through=hard and problem.backward)
        call = partial(attend or own, items, codes, table, values)
        return Case(problem, partial(call, assignment=keys, decay=problem.decay), [*inputs, table, values])
    torch.manual_seed(6)
    module = LISAAttention(
        hidden_size=problem.width, n_codebooks=N_CODEBOOKS, n_codewords=n_codewords, hard=hard, decay=problem.decay
    )
    module = module.to(problem.device, problem.dtype).eval()
    distinct = Quantized(codes, codes.new_empty(len(codes), 0) if keys is None else keys, codes.new_empty(0))

    def forward() -> Any:
        if attend is not None:
            return attend(items, codes, *module.table_and_values(), assignment=keys, decay=problem.decay)
        return module(CodedSequences(items, distinct), problem.everything())

    # The codes exist already, so the weight of the quantiser is not a parameter here.
    return Case(problem, forward, [*inputs, module.codebook.codewords, module.query, module.key, module.value])


def transformer(problem: Problem, *, naive: bool) -> Case:
    """Causal softmax attention with one head: with an (L, L) matrix, or by torch's fused kernels."""
    shape = (problem.n, problem.length, problem.width)
    if problem.part == "core":
        tensors = [problem.normal(*shape, seed=seed) for seed in (1, 2, 3)]
        return Case(problem, partial(causal_softmax_attention if naive else _fused_attention, *tensors), tensors)
    torch.manual_seed(6)
    module = FullAttention(hidden_size=problem.width).to(problem.device, problem.dtype).eval()
    x, valid = problem.normal(*shape, seed=1), problem.everything()

    def forward() -> Any:
        if naive:
            attended = causal_softmax_attention(module.query(x), module.key(x), module.value(x))
            return module.output(attended) * valid.unsqueeze(-1)
        with _fused_kernels(problem.device):
            return module(x, valid)

    return Case(problem, forward, [x, *module.parameters()])


def _fused_attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    query, key, value = (x.unsqueeze(1) for x in (query, key, value))
    with _fused_kernels(query.device):
        return scaled_dot_product_attention(query, key, value, is_causal=True).squeeze(1)


def _fused_kernels(device: torch.device) -> AbstractContextManager[Any]:
    """On a GPU, prefer torch's fastest kernel that serves the problem; the CPU has only one."""
    if device.type != "cuda":
        return nullcontext()
    names = ("CUDNN_ATTENTION", "FLASH_ATTENTION", "EFFICIENT_ATTENTION", "MATH")
    context: AbstractContextManager[Any] = sdpa_kernel([getattr(SDPBackend, x) for x in names], set_priority=True)
    return context


def mechanism(problem: Problem, *, name: str, **settings: Any) -> Case:
    """Any mechanism of the package; its core leaves out the projections from D to D."""
    torch.manual_seed(6)
    module = build_attention(name, hidden_size=problem.width, max_length=problem.length, **settings)
    module = module.to(problem.device, problem.dtype).eval()
    if problem.part == "core":
        remove_projections(module, problem.width)
    x, valid = problem.normal(problem.n, problem.length, problem.width, seed=1), problem.everything()
    return Case(problem, lambda: module(x, valid), [x, *module.parameters(), *module.buffers()])


def remove_projections(module: nn.Module, width: int) -> None:
    """Replace every linear layer from D to D inside a mechanism by the identity."""
    for name, layer in list(module.named_modules()):
        if isinstance(layer, nn.Linear) and layer.in_features == layer.out_features == width:
            identity = nn.Identity()
            identity.weight = identity.bias = layer.weight.detach().new_empty(0)  # mechanisms read its dtype
            parent, _, last = name.rpartition(".")
            setattr(module.get_submodule(parent), last, identity)


class Row(NamedTuple):
    """Function that builds a row, and the one that builds its reference (None: the tests compare it)."""

    build: Build
    reference: Build | None = None


_quadratic = gathered(lisa_reference.lisa_attention)
_of_hard_keys = gathered(partial(lisa_reference.lisa_attention, straight_through=True))
_small, _large, _largest = (partial(lisa, n_codewords=n) for n in (16, 32, 128))
_soft, _reference = partial(_small, hard=False), partial(_small, attend=_quadratic)
ROWS: dict[str, Row] = {
    "LISA-128": Row(_small, partial(_small, attend=_of_hard_keys)),
    "LISA-128 soft": Row(_soft, partial(_soft, attend=_quadratic)),
    "LISA-256": Row(_large, partial(_large, attend=_of_hard_keys)),
    "LISA-1024": Row(_largest, partial(_largest, attend=_of_hard_keys)),
    LISA_NAIVE: Row(partial(_small, attend=gathered(lisa_reference.lisa_attention_per_codebook)), _reference),
    LISA_ONE_PRODUCT: Row(partial(_small, attend=gathered(lisa_reference.lisa_attention_eager)), _reference),
    NAIVE: Row(partial(transformer, naive=True)),
    SDPA: Row(partial(transformer, naive=False), partial(transformer, naive=True)),
    "Linformer": Row(partial(mechanism, name="linformer", n_projected=128)),
    "Reformer LSH-1": Row(partial(mechanism, name="reformer", n_hashes=1)),
    "Reformer LSH-4": Row(partial(mechanism, name="reformer", n_hashes=4)),
    "Sinkhorn-32": Row(partial(mechanism, name="sinkhorn", bucket_size=32)),
    "Sinkhorn-64": Row(partial(mechanism, name="sinkhorn", bucket_size=64)),
    "Routing-32": Row(partial(mechanism, name="routing", window_size=32)),
    "Routing-64": Row(partial(mechanism, name="routing", window_size=64)),
    "Clustered-100": Row(partial(mechanism, name="clustered", n_clusters=100)),
    "Clustered-200": Row(partial(mechanism, name="clustered", n_clusters=200)),
    "LinearTransformer": Row(partial(mechanism, name="linear")),
    "HSTU": Row(partial(mechanism, name="hstu")),
    "LRU": Row(partial(mechanism, name="lru")),
    "Mamba-2": Row(partial(mechanism, name="mamba2")),
    "GRELA": Row(partial(mechanism, name="grela")),
    **({"GLA": Row(partial(mechanism, name="gla"))} if missing_requirement() is None else {}),
}
"""Row -> how it is built, in the order of the tables; the settings are the paper's where it has the row."""


def check_rows(names: Iterable[str], problem: Problem) -> None:
    """Compare outputs (with backward, gradients) with the float64 reference at an odd length; raises CheckError."""
    small = replace(problem, n=2, length=67, n_items=50)
    exact = replace(small, dtype=torch.float64, device=torch.device("cpu"))
    for name in names:
        build, reference = ROWS[name]
        if reference is None:
            continue
        actual, expected = build(small)(), reference(exact)()
        sizes = [float(y.detach().abs().max()) for y in expected]
        for index, (x, y) in enumerate(zip(actual, expected, strict=True)):
            difference = float((x.detach().double().cpu() - y.detach()).abs().max())
            error = difference / max(sizes[index], SMALL_TENSOR * max(sizes))
            if not error <= TOLERANCE[problem.dtype]:
                what = f"gradient {index}" if index else "output"
                raise CheckError(
                    f"{name} ({problem.part}) is wrong, nothing was timed: its {what} differs from the reference by "
                    f"{error:.2g} of the largest number at L={small.length}, {TOLERANCE[problem.dtype]:.0e} is allowed"
                )
