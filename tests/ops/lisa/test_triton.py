"""The kernels run on the GPU where there is one, else in Triton's interpreter (tests/conftest.py)."""

import json
import os
import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import Tensor

from recbole_lisa.ops import lisa_attention, lisa_attention_items
from recbole_lisa.ops.lisa import naive
from recbole_lisa.ops.lisa import triton_op as lisa_triton
from recbole_lisa.ops.lisa.triton_op import TritonLISA
from tests.helpers import assert_close

pytest.importorskip("triton")

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
U = 11
SHAPES = [(2, 77, 2, 5, 6), (3, 37, 1, 32, 20), (1, 65, 8, 17, 33), (5, 1, 3, 16, 8)]
IDS = [f"N{n}-L{length}-B{b}-W{w}-D{d}" for n, length, b, w, d in SHAPES]


def make_operands(n: int, length: int, b: int, w: int, d: int, *, kind: str, decay_kind: str) -> dict[str, Any]:
    """Arguments of lisa_attention_items in float32; every parameter is a leaf, `soft` the one below the keys."""
    lengths = torch.randint(0, length + 1, (n,))
    lengths[0] = length
    codes = torch.randint(w, (U, b))
    soft = torch.randn(U, b, w).softmax(dim=-1).requires_grad_() if kind != "hard" else None
    keys = soft
    if kind == "straight_through" and soft is not None:
        keys = torch.nn.functional.one_hot(codes, w).float() + (soft - soft.detach())
    decays = {"none": 0.0, "number": 0.1, "scalar": torch.tensor(0.2), "per_step": torch.rand(n, length)}
    decay = decays[decay_kind]
    return {
        "items": torch.randint(U, (n, length)),
        "codes": codes,
        "table": torch.randn(b, w, w).requires_grad_(),
        "values": torch.randn(b, w, d).requires_grad_(),
        "assignment": keys,
        "decay": decay.requires_grad_() if isinstance(decay, Tensor) else decay,
        "valid": torch.arange(length) < lengths.unsqueeze(1),
        "soft": soft,
    }


def moved(operands: dict[str, Any], *, to: str | torch.dtype) -> dict[str, Any]:
    """The operands on a device, or their numbers in a type."""

    def move(x: Any) -> Any:
        if not isinstance(x, Tensor) or (isinstance(to, torch.dtype) and not x.is_floating_point()):
            return x
        return x.to(to)

    return {name: move(x) for name, x in operands.items()}


def run_kernels(operands: dict[str, Any]) -> Tensor:
    """The kernels, whatever the device."""
    o = moved(operands, to=DEVICE)
    keys = None if o["assignment"] is None else o["assignment"].flatten(1)
    decay = torch.as_tensor(o["decay"], dtype=torch.float64, device=DEVICE)
    out: Tensor = TritonLISA.apply(o["items"], o["codes"], keys, o["table"], o["values"], decay, o["valid"])
    return out.cpu()


def run_torch(operands: dict[str, Any]) -> Tensor:
    """The blocked torch code, on the CPU."""
    return lisa_attention_items(**{name: x for name, x in operands.items() if name != "soft"})


def run_reference(operands: dict[str, Any]) -> Tensor:
    """The quadratic reference, in float64."""
    o = moved(operands, to=torch.float64)
    items, keys = o["items"], o["assignment"]
    return naive.lisa_attention(
        o["codes"][items],
        o["table"],
        o["values"],
        assignment=None if keys is None else keys[items],
        decay=o["decay"],
        valid=o["valid"],
    )


def assert_same(actual: Tensor, expected: Tensor) -> None:
    """Compare relative to the largest entry where that is above 1: a gradient is a sum over all positions."""
    scale = expected.detach().abs().max().clamp_min(1.0)
    assert_close(actual.float() / scale, expected.float() / scale)


def outputs_and_gradients(run: Any, operands: dict[str, Any]) -> list[Tensor]:
    leaves = [x for x in (operands[k] for k in ("soft", "table", "values", "decay")) if isinstance(x, Tensor)]
    out = run(operands)
    weight = torch.cos(torch.arange(out.numel(), dtype=out.dtype)).view_as(out)
    grads = torch.autograd.grad(out, leaves, weight, allow_unused=True)
    return [out, *(torch.zeros_like(x) if g is None else g for g, x in zip(grads, leaves, strict=True))]


CASES = [
    *((shape, "hard", "none") for shape in SHAPES),
    *((shape, "soft", "per_step") for shape in SHAPES),
    (SHAPES[0], "straight_through", "number"),
    (SHAPES[0], "soft", "scalar"),
    (SHAPES[1], "hard", "scalar"),
    (SHAPES[2], "straight_through", "per_step"),
]


@pytest.mark.oracle
@pytest.mark.parametrize(
    ("shape", "kind", "decay_kind"), CASES, ids=[f"{IDS[SHAPES.index(s)]}-{kind}-{decay}" for s, kind, decay in CASES]
)
def test_outputs_and_all_gradients_equal_the_reference_and_the_torch_code(
    shape: tuple[int, int, int, int, int], kind: str, decay_kind: str
) -> None:
    operands = make_operands(*shape, kind=kind, decay_kind=decay_kind)
    kernels, blocked, reference = (
        outputs_and_gradients(run, operands) for run in (run_kernels, run_torch, run_reference)
    )
    for actual, torch_code, slow in zip(kernels, blocked, reference, strict=True):
        assert actual.dtype == torch_code.dtype
        assert_same(actual, slow)
        assert_same(actual, torch_code)


@pytest.mark.parametrize("decay_kind", ["number", "per_step"])
def test_many_blocks_are_joined_in_groups(decay_kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lisa_triton, "SCAN_GROUP", 16)
    operands = make_operands(2, 16 * 32 + 45, 1, 3, 4, kind="soft", decay_kind=decay_kind)
    kernels, blocked = (outputs_and_gradients(run, operands) for run in (run_kernels, run_torch))
    for actual, expected in zip(kernels, blocked, strict=True):
        assert_same(actual, expected)


def test_huge_gaps_forget_without_losing_later_small_ones() -> None:
    operands = make_operands(2, 50, 2, 4, 5, kind="soft", decay_kind="per_step")
    with torch.no_grad():
        operands["decay"][:, ::7] = 1e9
    kernels, blocked = (outputs_and_gradients(run, operands) for run in (run_kernels, run_torch))
    for actual, expected in zip(kernels, blocked, strict=True):
        assert torch.isfinite(actual).all()
        assert_same(actual, expected)


def test_items_without_padding_and_small_code_types() -> None:
    operands = make_operands(2, 40, 2, 5, 6, kind="hard", decay_kind="none")
    expected = run_torch({**operands, "valid": None})
    assert_same(run_kernels({**operands, "valid": None, "codes": operands["codes"].to(torch.uint8)}), expected)


# The interpreter multiplies the bits of bfloat16 operands as integers.
@pytest.mark.parametrize("dtype", [torch.float16, pytest.param(torch.bfloat16, marks=pytest.mark.gpu)])
def test_half_precision_values_keep_float32_histograms(dtype: torch.dtype) -> None:
    # 300 equal items: a bfloat16 histogram would stop counting at 256.
    length, w = 301, 4
    codes = torch.zeros(length, 1, dtype=torch.long)
    codes[0] = 1
    items = torch.arange(length).view(1, -1)
    values = torch.eye(w).unsqueeze(0).to(dtype)
    decay = torch.zeros((), dtype=torch.float64, device=DEVICE)
    out = TritonLISA.apply(
        *(x.to(DEVICE) for x in (items, codes)),
        None,
        *(x.to(DEVICE) for x in (torch.zeros(1, w, w), values)),
        decay,
        None,
    )
    assert out.dtype == dtype
    share = 1 / torch.arange(1, length + 1)
    assert_close(out[0, :, 1].cpu().float(), share, computed_in=dtype)


COMPILE = """
import json
import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from recbole_lisa.ops.lisa import triton_kernels as lisa_kernels
from recbole_lisa.ops.lisa import triton_op as lisa_triton
w, d, dtype = 16, 128, torch.bfloat16
if WIDE:
    w, d, dtype = 256, 1024, torch.float32
s = lisa_triton._sizes(torch.empty(2, 1000, device="meta"), torch.empty(8, w, d, dtype=dtype, device="meta"))
float64, int64, small = {"totals", "decay", "group_decays"}, {"items", "codes"}, {"valid"}
of_values = {"out", "values", "d_out"}
pointers = float64 | int64 | small | of_values | {
    "sums", "group_sums", "assignment", "rows", "carries", "later", "d_table", "d_values", "d_assignment", "d_decay"
}
constants = {
    "block": s.block, "block_w": s.block_w, "block_q": s.block_q, "group": lisa_triton.SCAN_GROUP,
    "block_c": lisa_triton.SCAN_COLUMNS, "hard": False, "has_valid": True, "per_step": True, "has_carry": True,
    "keep_sums": True, "want_keys": True, "want_decay": True, "reverse": True, "precision": "tf32x3",
}
widths = {"forward_kernel": s.out_d, "values_backward_kernel": s.sum_d}
kernels = [name for name in vars(lisa_kernels) if name.endswith("_kernel")]
shared = {}
for name in kernels:
    kernel = getattr(lisa_kernels, name)
    known = {**constants, "block_d": widths.get(name, s.dot_d)}
    signature, attributes = {}, {}
    for i, argument in enumerate(kernel.arg_names):
        kind = "fp64" if argument in float64 else "i64" if argument in int64 else "u8" if argument in small else "fp32"
        if argument in of_values and dtype == torch.bfloat16:
            kind = "bf16"
        pointer = argument in pointers
        signature[argument] = "constexpr" if argument in known else "*" + kind if pointer else "i32"
        if pointer:
            attributes[(i,)] = [["tt.divisibility", 16]]
    values = {(i,): known[argument] for i, argument in enumerate(kernel.arg_names) if argument in known}
    source = ASTSource(fn=kernel, signature=signature, constexprs=values, attrs=attributes)
    warps = 4 if s.block_w == 16 else 8
    options = {"num_warps": warps, "num_stages": 1}
    shared[name] = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options).metadata.shared
print(json.dumps(shared))
"""


@pytest.mark.parametrize("wide", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["W16-D128", "W256-D1024"])
def test_every_kernel_compiles_for_sm_90_within_its_shared_memory(wide: bool) -> None:
    environment = {**os.environ, "TRITON_INTERPRET": "0"}
    code = f"WIDE = {wide}\n" + COMPILE
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    shared = json.loads(done.stdout.splitlines()[-1])
    assert len(shared) == 7
    assert max(shared.values()) <= 227 * 1024


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["hard", "soft"])
@pytest.mark.parametrize(("w", "d"), [(16, 128), (32, 64), (128, 128), (256, 1024)])
def test_public_function_on_the_gpu_equals_the_torch_code(w: int, d: int, kind: str) -> None:
    operands = make_operands(3, 333, 8, w, d, kind=kind, decay_kind="per_step")
    gpu = {**moved(operands, to="cuda")}
    kernels = outputs_and_gradients(lambda _: run_torch(gpu).cpu(), operands)
    for actual, expected in zip(kernels, outputs_and_gradients(run_torch, operands), strict=True):
        assert_same(actual, expected)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_on_the_gpu_is_close_to_float32(dtype: torch.dtype) -> None:
    operands = make_operands(3, 333, 8, 128, 128, kind="soft", decay_kind="scalar")
    half = moved(operands, to="cuda")
    half["values"] = half["values"].to(dtype)
    kernels = outputs_and_gradients(lambda _: run_torch(half).float().cpu(), operands)
    for actual, expected in zip(kernels, outputs_and_gradients(run_torch, operands), strict=True):
        scale = expected.detach().abs().max()
        assert_close(actual / scale, expected / scale, computed_in=dtype)


@pytest.mark.gpu
def test_more_than_two_to_the_31_outputs_on_the_gpu() -> None:
    n, length, w, d = 33, 65_536, 16, 1024
    codes = torch.randint(w, (n, length, 1), dtype=torch.uint8, device="cuda")
    table, values = torch.randn(1, w, w, device="cuda"), torch.randn(1, w, d, device="cuda", dtype=torch.bfloat16)
    with torch.no_grad():
        out = lisa_attention(codes, table, values, decay=0.1)[-1, -100:]
        alone = lisa_attention(codes[-1:], table, values, decay=0.1)[0, -100:]
    assert torch.equal(out, alone)
