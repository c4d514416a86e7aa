import importlib
import math
from typing import Any

import pytest
import torch
from torch import Tensor

from benchmarks import lisa_reference as naive
from benchmarks.references import causal_softmax_attention
from recbole_lisa.ops import lisa_attention, lisa_attention_items, lisa_attention_last, lisa_attention_non_padding
from recbole_lisa.ops.lisa import numba_loops, torch_blocks
from tests.helpers import all_valid, assert_close, assert_close_with_gradients
from tests.ops.lisa.operands import gathered, moved, operands, with_gradients

# The package exports a function of the same name.
module = importlib.import_module("recbole_lisa.ops.lisa.attention")

SHAPES = [(2, 63, 4, 16), (3, 37, 1, 7), (2, 150, 3, 5), (4, 1, 2, 3), (2, 9, 3, 1)]
IDS = [f"N{n}-L{length}-B{b}-W{w}" for n, length, b, w in SHAPES]
D = 6
every_decay = pytest.mark.parametrize("decay", ["0", "0.1", "scalar", "per_step"])
hard_and_soft = pytest.mark.parametrize("kind", ["hard", "soft"])
every_kind = pytest.mark.parametrize("kind", ["hard", "soft", "straight_through"])


@pytest.fixture(params=["numba", "torch"])
def code(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The Numba kernels, or what runs where they do not serve."""
    if request.param == "torch":
        monkeypatch.setattr(module, "numba_serves", lambda _: False)
    return str(request.param)


def output_at_the_end(
    codes: Tensor, table: Tensor, values: Tensor, assignment: Tensor | None, *, last: bool, **options: Any
) -> Tensor:
    """(D,) The final output of one sequence with codes (L, B): by lisa_attention_last, or out of all outputs."""
    if not last:
        keys = None if assignment is None else assignment.unsqueeze(0)
        return lisa_attention(codes.unsqueeze(0), table, values, assignment=keys, **options)[0, -1]
    items, valid = torch.arange(len(codes)).view(1, -1), all_valid(1, len(codes))
    return lisa_attention_last(items, codes, table, values, assignment=assignment, valid=valid, **options)[0]


@pytest.mark.oracle
@every_decay
@every_kind
@pytest.mark.parametrize(("n", "length", "b", "w"), SHAPES, ids=IDS)
def test_outputs_and_all_gradients_equal_the_quadratic_reference(
    n: int, length: int, b: int, w: int, kind: str, decay: str, code: str
) -> None:
    arguments, leaves = operands(n, length, b, w, kind=kind, decay=decay)
    assert_close_with_gradients(lisa_attention(**arguments), naive.lisa_attention(**arguments), leaves)


@pytest.mark.oracle
@every_kind
def test_bidirectional_equals_the_quadratic_reference(kind: str) -> None:
    arguments, leaves = operands(3, 41, 3, 5, kind=kind)
    fast, slow = (op(**arguments, causal=False) for op in (lisa_attention, naive.lisa_attention))
    assert_close_with_gradients(fast, slow, leaves)


@pytest.mark.oracle
@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_one_codebook_is_exact_softmax_attention_over_quantised_items(decay: float) -> None:
    n, length, w = 2, 45, 8
    codebook = torch.randn(w, D, dtype=torch.float64)
    codes = torch.randint(w, (n, length, 1))
    table = (codebook @ codebook.t() / math.sqrt(D)).unsqueeze(0)
    out = lisa_attention(codes, table, codebook.unsqueeze(0), decay=decay)
    items = codebook[codes[..., 0]]
    logits = items @ items.transpose(1, 2) / math.sqrt(D)
    steps = torch.arange(length, dtype=torch.float64)
    logits = logits + decay * (steps[None, :] - steps[:, None])
    exact = logits.masked_fill(torch.ones(length, length).triu(1).bool(), -torch.inf).softmax(-1) @ items
    torch.testing.assert_close(out, exact, rtol=1e-13, atol=1e-13)
    if not decay:
        assert_close(causal_softmax_attention(items, items, items), exact)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("scale", [1e2, 1e3])
@hard_and_soft
def test_large_logits_stay_finite_and_equal_the_float64_reference(dtype: torch.dtype, scale: float, kind: str) -> None:
    arguments, leaves = operands(3, 83, 3, 9, kind=kind, decay="0.1")
    arguments["table"] = arguments["table"] * scale
    fast, slow = lisa_attention(**moved(arguments, to=dtype)), naive.lisa_attention(**arguments)
    # In float32 a score of 1e3 is itself rounded by 6e-5, and its exponential by as much.
    atol = 1e-3 if dtype == torch.float32 else 1e-10
    torch.testing.assert_close(fast.double(), slow, rtol=0.0, atol=atol)
    assert all(torch.isfinite(grad).all() for grad in torch.autograd.grad(fast.square().sum(), leaves))


@hard_and_soft
def test_length_65536_is_finite_and_right_in_float32(kind: str) -> None:
    arguments, _ = operands(1, 65_536, 2, 4, kind=kind, decay="0.1", dtype=torch.float32)
    out = lisa_attention(**arguments)
    assert torch.isfinite(out).all()
    recent = moved(arguments, to=torch.float64)
    for name in ("codes", "assignment", "valid"):
        recent[name] = None if recent[name] is None else recent[name][:, -400:]
    # exp(-0.1 * 200) = 2e-9 of the weight lies before the last 400 items.
    assert_close(out[:, -200:], naive.lisa_attention(**recent)[:, -200:], computed_in=torch.float32)


@pytest.mark.parametrize("last", [False, True], ids=["everywhere", "last"])
@hard_and_soft
@pytest.mark.parametrize("logit", [140.0, 1000.0])
def test_a_faded_codeword_with_a_large_score_still_wins_in_float32(logit: float, kind: str, last: bool) -> None:
    # exp(-0.1 * 1299) is 0 in float32, but times exp(140) it outweighs everything recent.
    length, w = 1300, 4
    codes = torch.ones(length, 1, dtype=torch.long)
    codes[0] = 2
    table = torch.zeros(1, w, w)
    table[0, 1, 2] = logit
    keys = None if kind == "hard" else torch.nn.functional.one_hot(codes, w).float()
    out = output_at_the_end(codes, table, torch.eye(w).unsqueeze(0), keys, decay=0.1, last=last)
    recent = (1 - math.exp(-0.1 * (length - 1))) / (1 - math.exp(-0.1))
    share = 1 / (1 + recent * math.exp(0.1 * (length - 1) - logit))
    assert_close(out, torch.tensor([0.0, 1 - share, share, 0.0]))


@pytest.mark.parametrize("last", [False, True], ids=["everywhere", "last"])
def test_a_straight_through_gradient_is_bounded_where_a_codeword_is_absent(last: bool, code: str) -> None:
    # Codeword 1 is in no history, and its score is 40 above that of codeword 0.
    codes, table = torch.zeros(3, 1, dtype=torch.long), torch.tensor([[[0.0, 40.0], [0.0, 0.0]]])
    keys, values = torch.tensor([[[1.0, 0.0]]] * 3, requires_grad=True), torch.tensor([[[0.0], [1.0]]])
    for straight_through, largest in ((False, math.exp(40) / 3), (True, 1.0)):
        out = output_at_the_end(codes, table, values, keys, last=last, straight_through=straight_through)
        (gradient,) = torch.autograd.grad(out.sum(), keys)
        assert_close(gradient / largest, torch.tensor([[[0.0, 1.0]]] * 3))


def test_items_form_equals_the_gathered_form_in_outputs_and_gradients() -> None:
    arguments, leaves = operands(3, 77, 2, 5, kind="soft", decay="0.1", n_items=9)
    indexed, expected = lisa_attention_items(**arguments), lisa_attention(**gathered(arguments))
    assert_close_with_gradients(indexed, expected, leaves)


@every_decay
@every_kind
def test_last_position_equals_the_full_output_there(kind: str, decay: str) -> None:
    arguments, leaves = operands(4, 37, 3, 5, kind=kind, decay=decay, n_items=11)
    arguments["valid"][-1] = False
    final = (arguments["valid"].sum(1) - 1).clamp_min(0)
    last, full = lisa_attention_last(**arguments), lisa_attention_items(**arguments)
    assert (last[-1] == 0).all()
    assert_close_with_gradients(last, full[torch.arange(4), final], leaves)


def test_bfloat16_operands_keep_float32_histograms() -> None:
    arguments, _ = operands(2, 700, 2, 4)
    half = lisa_attention(**moved(arguments, to=torch.bfloat16))
    assert half.dtype == torch.bfloat16
    assert_close(half.double(), lisa_attention(**arguments), computed_in=torch.bfloat16)


@pytest.mark.parametrize(("n", "length"), [(0, 5), (2, 0)])
def test_empty_batches_and_sequences_give_empty_outputs_and_a_zero_last_position(n: int, length: int) -> None:
    arguments, _ = operands(1, 9, 2, 3, n_items=9)
    arguments.update(items=torch.zeros(n, length, dtype=torch.long), valid=all_valid(n, length))
    for causal in (True, False):
        assert lisa_attention(**gathered(arguments), causal=causal).shape == (n, length, D)
    assert torch.equal(lisa_attention_last(**arguments), torch.zeros(n, D, dtype=torch.float64))
    assert lisa_attention_non_padding(**arguments).shape == (0, D)


@hard_and_soft
@pytest.mark.parametrize("last", [False, True], ids=["everywhere", "last"])
def test_autocast_keeps_histograms_and_normalisers_in_float32(kind: str, last: bool) -> None:
    # 300 equal items: a bfloat16 histogram would stop counting at 256.
    length, w = 300, 4
    codes = torch.zeros(length, 1, dtype=torch.long)
    codes[0] = 1
    keys = None if kind == "hard" else torch.nn.functional.one_hot(codes, w).float().requires_grad_()
    table, values = torch.zeros(1, w, w, requires_grad=True), torch.eye(w).unsqueeze(0).requires_grad_()
    leaves = [x for x in (table, values, keys) if x is not None]
    results = []
    for enabled in (False, True):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled):
            out = output_at_the_end(codes, table, values, keys, last=last)
        results.append((out, *torch.autograd.grad(out.square().sum(), leaves)))
    plain, cast = results
    assert_close(plain[0][1], torch.tensor(1 / length))
    for a, b in zip(cast, plain, strict=True):
        assert a.dtype == torch.float32
        assert_close(a, b)


@hard_and_soft
def test_a_compiled_caller_gets_the_same_outputs_and_gradients(kind: str) -> None:
    arguments, leaves = operands(2, 70, 2, 4, kind=kind, decay="0.1")

    def caller(table: Tensor, values: Tensor, keys: Tensor | None) -> Tensor:
        changed = {"table": table * 1.5, "values": values + 1, "assignment": None if keys is None else keys * 2}
        return lisa_attention(**{**arguments, **changed}).sin()

    plain, compiled = (
        function(arguments["table"], arguments["values"], arguments["assignment"])
        for function in (caller, torch.compile(caller, backend="aot_eager"))
    )
    assert_close_with_gradients(compiled, plain, leaves)


def test_triton_serves_causal_float32_on_a_gpu_and_a_log_line_says_that_it_is_missing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    serves, gpu = module._triton_serves, torch.device("cuda")
    monkeypatch.setattr(module, "triton_is_installed", lambda: True)
    assert serves(gpu, torch.float32, causal=True)
    assert not serves(gpu, torch.float64, causal=True)
    assert not serves(gpu, torch.float32, causal=False)
    assert not serves(torch.device("cpu"), torch.float32, causal=True)
    monkeypatch.setattr(module, "triton_is_installed", lambda: False)
    module._log_fallback.cache_clear()
    assert [serves(gpu, torch.float32, causal=True) for _ in range(3)] == [False] * 3
    message = "Triton is not installed: LISA runs on the GPU as plain PyTorch, several times slower"
    assert [record.message for record in caplog.records] == [message]


@every_decay
@hard_and_soft
@pytest.mark.parametrize(("n", "length"), [(1, 700), (3, 333), (70, 35)])
def test_blocks_of_any_shape_equal_the_reference(
    n: int, length: int, kind: str, decay: str, code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # 16 lanes of 16 steps: one sequence in chunks, a few sequences in chunks, more sequences than lanes.
    monkeypatch.setattr(torch_blocks, "BLOCK_ELEMENTS", 1)
    monkeypatch.setattr(numba_loops, "BLOCK_ELEMENTS", 3 * 29)  # 29 rows: blocks begin anywhere in a sequence
    arguments, leaves = operands(n, length, 1, 3, kind=kind, decay=decay)
    assert_close_with_gradients(lisa_attention(**arguments), reference_scan(**arguments), leaves)


@hard_and_soft
def test_huge_decays_forget_without_losing_later_small_ones(kind: str, code: str) -> None:
    arguments, leaves = operands(2, 150, 2, 4, kind=kind, decay="per_step")
    with torch.no_grad():
        arguments["decay"][:, ::7] = 1e9
        arguments["decay"][:, ::50] = torch.inf
    out = lisa_attention(**arguments)
    assert_close(out, reference_scan(**arguments))
    assert all(torch.isfinite(grad).all() for grad in torch.autograd.grad(out.sin().sum(), leaves))


@pytest.mark.parametrize("decay", ["0", "scalar", "per_step"])
@every_kind
@pytest.mark.parametrize("holes", [False, True], ids=["padded", "holes"])
def test_non_padding_positions_equal_those_of_all(holes: bool, kind: str, decay: str, code: str) -> None:
    arguments, leaves = operands(4, 31, 3, 5, kind=kind, decay=decay, n_items=90)
    valid = arguments["valid"]
    valid[1] = False
    if holes:
        valid &= torch.rand(valid.shape) < 0.6
    kept, everywhere = lisa_attention_non_padding(**arguments), lisa_attention_items(**arguments)
    assert_close_with_gradients(kept, everywhere[valid], leaves)


def test_threads_share_the_codebooks(monkeypatch: pytest.MonkeyPatch) -> None:
    arguments, leaves = operands(3, 41, 5, 4, kind="soft", decay="per_step")
    results = []
    for threads in (1, 3):
        monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
        results.append(with_gradients(lisa_attention(**arguments), leaves))
    for one, three in zip(*results, strict=True):
        assert torch.equal(one, three)


@hard_and_soft
def test_an_item_that_is_not_there_is_refused(kind: str, code: str) -> None:
    arguments, _ = operands(1, 2, 2, 3, kind=kind, n_items=4)
    with pytest.raises(IndexError):
        lisa_attention_items(**{**arguments, "items": torch.tensor([[0, 4]])})


def reference_scan(
    codes: Tensor, table: Tensor, values: Tensor, *, assignment: Tensor | None, decay: float | Tensor, valid: Tensor
) -> Tensor:
    """The step-by-step histogram and Algorithm 1, linear in the length, unlike the quadratic reference."""
    n, length, n_codebooks = codes.shape
    keys = torch.nn.functional.one_hot(codes, table.shape[1]).double() if assignment is None else assignment
    steps = torch.as_tensor(decay, dtype=torch.float64).expand(n, length)
    histogram = naive.decayed_histogram(keys * valid[:, :, None, None], steps)
    weights = histogram * table.exp()[torch.arange(n_codebooks), codes]
    weights = weights / weights.sum(dim=-1, keepdim=True).clamp_min(1e-300)
    return torch.einsum("nlbw,bwd->nld", weights, values) * valid.unsqueeze(-1)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int32])
def test_codes_of_any_integer_type(dtype: torch.dtype) -> None:
    arguments, _ = operands(2, 20, 2, 4)
    narrow = {**arguments, "codes": arguments["codes"].to(dtype)}
    assert_close(lisa_attention(**narrow), lisa_attention(**arguments))


def test_arguments_are_not_edited() -> None:
    arguments, _ = operands(2, 20, 2, 4, kind="soft", decay="per_step")
    copies = {name: x.detach().clone() for name, x in arguments.items()}
    lisa_attention(**arguments).sum().backward()
    for name, before in copies.items():
        assert torch.equal(arguments[name].detach(), before)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"decay": -0.5}, "at least 0, got -0.5"),
        ({"causal": False, "decay": 0.1}, "bidirectional attention has no decay"),
        ({"assignment": torch.ones(2, 4, 2, 3)}, "assignment .* with N = 2, L = 5, B = 2, W = 3"),
        ({"table": torch.ones(2, 3, 4)}, r"table must be .*W\), got torch.float32 \(2, 3, 4\)"),
        ({"values": torch.ones(1, 3, 6)}, r"values must be .*\(B, W, D\) with B = 2, W = 3"),
        ({"codes": torch.ones(2, 5, 2, dtype=torch.bool)}, "codes must be integer .* got torch.bool"),
        ({"codes": torch.zeros(5, 2, dtype=torch.long)}, r"codes must be integer \(N, L, B\) .* got .*\(5, 2\)"),
        ({"codes": torch.full((2, 5, 2), 3)}, r"codes must lie in 0\.\.2 \(W - 1\), got 3"),
        ({"codes": torch.full((2, 5, 2), -1)}, r"codes must lie in 0\.\.2 \(W - 1\), got -1"),
        ({"decay": torch.tensor(-0.25)}, "at least 0, got -0.25"),
        ({"valid": torch.ones(2, 4, dtype=torch.bool)}, r"valid must be bool \(N, L\) with N = 2, L = 5"),
        ({"valid": torch.ones(2, 5, dtype=torch.long)}, "valid must be bool .* got torch.int64"),
        ({"decay": float("nan")}, "at least 0, got nan"),
        ({"decay": torch.tensor(float("nan"))}, "at least 0, got nan"),
        *(({"decay": wrong}, "at least 0, got") for wrong in ("time", None, [0.1])),
        ({"table": torch.ones(2, 0, 0), "values": torch.ones(2, 0, 6)}, r"table must be .* \(B >= 1, W >= 1, W\)"),
        ({"decay": torch.ones(2, 4)}, r"decay must be .*\(N, L\) with N = 2, L = 5, got torch.float64 \(2, 4\)"),
    ],
)
def test_wrong_operands_are_named(change: dict[str, object], message: str) -> None:
    good = {"codes": torch.zeros(2, 5, 2).long(), "table": torch.ones(2, 3, 3), "values": torch.ones(2, 3, 6)}
    with pytest.raises(ValueError, match=message):
        lisa_attention(**{**good, **change})
