"""The kernels run on the GPU where there is one, else in Triton's interpreter (tests/conftest.py)."""

import functools
import json
from typing import Any

import pytest
import torch
from torch import Tensor

from benchmarks import lisa_reference as naive
from recbole_lisa.ops import lisa_attention, lisa_attention_items
from recbole_lisa.ops.lisa import triton_op as lisa_triton
from recbole_lisa.ops.lisa.triton_op import TritonLISA
from tests.helpers import assert_close, run_python
from tests.ops.lisa.operands import gathered, moved, operands, with_gradients

pytest.importorskip("triton")

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SHAPES = [(2, 77, 2, 5, 6), (3, 37, 1, 32, 20), (1, 65, 8, 17, 33), (5, 1, 3, 16, 8)]
IDS = [f"N{n}-L{length}-B{b}-W{w}-D{d}" for n, length, b, w, d in SHAPES]
triton_operands = functools.partial(operands, n_items=11, dtype=torch.float32)


def run_kernels(arguments: dict[str, Any]) -> Tensor:
    """The kernels, whatever the device."""
    o = moved(arguments, to=DEVICE)
    keys = None if o["assignment"] is None else o["assignment"].flatten(1)
    decay = torch.as_tensor(o["decay"], dtype=torch.float64, device=DEVICE)
    inputs = o["items"], o["codes"], keys, o["table"], o["values"], decay, o["valid"]
    out: Tensor = TritonLISA.apply(o.get("straight_through", False), *inputs)
    return out.cpu()


def assert_same(actual: Tensor, expected: Tensor) -> None:
    """Compare relative to the largest entry where that is above 1: a gradient is a sum over all positions."""
    scale = expected.detach().abs().max().clamp_min(1.0)
    assert_close(actual.float() / scale, expected.float() / scale)


def assert_same_with_gradients(actual: Tensor, expected: Tensor, leaves: list[Tensor]) -> None:
    """Compare outputs and all gradients, which must be finite."""
    for ours, theirs in zip(with_gradients(actual, leaves), with_gradients(expected, leaves), strict=True):
        assert torch.isfinite(ours).all()
        assert_same(ours, theirs)


CASES = [
    *((shape, "hard", "0") for shape in SHAPES),
    *((shape, "soft", "per_step") for shape in SHAPES),
    (SHAPES[0], "straight_through", "0.1"),
    (SHAPES[0], "soft", "scalar"),
    (SHAPES[1], "hard", "scalar"),
    (SHAPES[2], "straight_through", "per_step"),
]


@pytest.mark.oracle
@pytest.mark.parametrize(
    ("shape", "kind", "decay"), CASES, ids=[f"{IDS[SHAPES.index(s)]}-{kind}-{decay}" for s, kind, decay in CASES]
)
def test_kernels_equal_the_reference_and_the_torch_code(shape: tuple[int, ...], kind: str, decay: str) -> None:
    arguments, leaves = triton_operands(*shape[:4], d=shape[4], kind=kind, decay=decay)
    kernels, blocked = run_kernels(arguments), lisa_attention_items(**arguments)
    reference = naive.lisa_attention(**gathered(moved(arguments, to=torch.float64)))
    assert kernels.dtype == blocked.dtype
    assert_same_with_gradients(kernels, blocked, leaves)
    assert_same_with_gradients(kernels, reference, leaves)


@pytest.mark.parametrize("decay", ["0.1", "per_step"])
def test_many_blocks_are_joined_in_groups(decay: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lisa_triton, "SCAN_GROUP", 16)
    arguments, leaves = triton_operands(2, 16 * 32 + 45, 1, 3, d=4, kind="soft", decay=decay)
    assert_same_with_gradients(run_kernels(arguments), lisa_attention_items(**arguments), leaves)


def test_huge_gaps_forget_without_losing_later_small_ones() -> None:
    arguments, leaves = triton_operands(2, 50, 2, 4, d=5, kind="soft", decay="per_step")
    with torch.no_grad():
        arguments["decay"][:, ::7] = 1e9
    assert_same_with_gradients(run_kernels(arguments), lisa_attention_items(**arguments), leaves)


def test_items_without_padding_and_small_code_types() -> None:
    arguments, _ = triton_operands(2, 40, 2, 5, d=6, kind="hard", decay="0")
    arguments["valid"] = None
    small = {**arguments, "codes": arguments["codes"].to(torch.uint8)}
    assert_same(run_kernels(small), lisa_attention_items(**arguments))


# The interpreter multiplies the bits of bfloat16 operands as integers.
@pytest.mark.parametrize("dtype", [torch.float16, pytest.param(torch.bfloat16, marks=pytest.mark.gpu)])
def test_half_precision_values_keep_float32_histograms(dtype: torch.dtype) -> None:
    # 300 equal items: a bfloat16 histogram would stop counting at 256.
    length, w = 301, 4
    codes = torch.zeros(length, 1, dtype=torch.long)
    codes[0] = 1
    items = torch.arange(length).view(1, -1)
    arguments = {"items": items, "codes": codes, "assignment": None, "decay": 0.0, "valid": None}
    arguments |= {"table": torch.zeros(1, w, w), "values": torch.eye(w).unsqueeze(0).to(dtype)}
    out = run_kernels(arguments)
    assert out.dtype == dtype
    share = 1 / torch.arange(1, length + 1)
    assert_close(out[0, :, 1].float(), share, computed_in=dtype)


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
s = lisa_triton._Sizes(torch.empty(2, 1000, device="meta"), torch.empty(8, w, d, dtype=dtype, device="meta"))
float64, int64, small = {"totals", "decay", "group_decays"}, {"items", "codes"}, {"valid"}
of_values = {"out", "values", "d_out"}
pointers = float64 | int64 | small | of_values | {
    "sums", "group_sums", "assignment", "rows", "carries", "later", "d_table", "d_values", "d_assignment", "d_decay"
}
constants = {
    "block": s.block, "block_w": s.block_w, "block_q": s.block_q, "group": lisa_triton.SCAN_GROUP,
    "block_c": lisa_triton.SCAN_COLUMNS, "hard": False, "has_valid": True, "per_step": True, "has_carry": True,
    "keep_sums": True, "want_keys": True, "want_decay": True, "straight_through": True, "reverse": True,
    "precision": "tf32x3",
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
    output, _ = run_python(f"WIDE = {wide}\n" + COMPILE, TRITON_INTERPRET="0")
    shared = json.loads(output.splitlines()[-1])
    assert len(shared) == 7
    assert max(shared.values()) <= 227 * 1024


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["hard", "soft"])
@pytest.mark.parametrize(("w", "d"), [(16, 128), (32, 64), (128, 128), (256, 1024)])
def test_public_function_on_the_gpu_equals_the_torch_code(w: int, d: int, kind: str) -> None:
    arguments, leaves = triton_operands(3, 333, 8, w, d=d, kind=kind, decay="per_step")
    gpu = lisa_attention_items(**moved(arguments, to="cuda")).cpu()
    assert_same_with_gradients(gpu, lisa_attention_items(**arguments), leaves)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_on_the_gpu_is_close_to_float32(dtype: torch.dtype) -> None:
    arguments, leaves = triton_operands(3, 333, 8, 128, d=128, kind="soft", decay="scalar")
    half = moved(arguments, to="cuda")
    half["values"] = half["values"].to(dtype)
    half_grads = with_gradients(lisa_attention_items(**half).float().cpu(), leaves)
    for actual, expected in zip(half_grads, with_gradients(lisa_attention_items(**arguments), leaves), strict=True):
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
