"""A naive loop runs in the place of the kernel, which needs its package and a GPU."""

import pytest
import torch

from benchmarks.references import gated_recurrence
from recbole_lisa.attention import Attention, GatedLinearAttention, build_attention, gla
from tests.attention.references import D
from tests.helpers import all_valid, assert_close, assert_close_with_gradients


def test_open_gates_are_a_prefix_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gla, "load_recurrence", lambda: gated_recurrence)
    attention = GatedLinearAttention(hidden_size=D, n_heads=1).double().eval()
    x = torch.randn(2, 13, D, dtype=torch.float64)
    with torch.no_grad():  # the logarithm of a gate is 0 to within e^-1000
        attention.forget_gate[1].weight.zero_()
        attention.forget_gate[1].bias.fill_(1000.0)
    query, key, value = attention.query(x), attention.key(x), attention.value(x)
    attended = (query @ key.transpose(1, 2) / (D // 2) ** 0.5).tril() @ value
    gated = torch.nn.functional.silu(attention.output_gate(x)) * attention.norm(attended)
    assert_close(attention(x, all_valid(2, 13)), attention.output(gated))


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gla, "find_spec", lambda name: None if name == "fla" else object())
    with pytest.raises(ValueError, match="flash-linear-attention is not installed: pip install flash-linear-attention"):
        build_attention("gla", hidden_size=D, max_length=9)
    monkeypatch.setattr(gla, "find_spec", lambda name: object())
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match="there is no CUDA device"):
        build_attention("gla", hidden_size=D, max_length=9)


def random_inputs(device: str) -> list[torch.Tensor]:
    x = [torch.randn(2, 77, 2, 16, device=device) for _ in range(4)]
    x[3] = torch.nn.functional.logsigmoid(x[3]) / gla.GATE_NORMALIZER
    return [y.requires_grad_() for y in x]


@pytest.mark.oracle
def test_the_naive_loop_equals_that_of_the_package() -> None:
    package = pytest.importorskip("fla.ops.gla.naive", exc_type=ImportError)
    inputs = random_inputs("cpu")
    assert_close(gated_recurrence(*inputs)[0], package.naive_recurrent_gla(*inputs)[0])


@pytest.mark.gpu
def test_the_kernel_equals_the_naive_loop_in_outputs_and_gradients() -> None:
    pytest.importorskip("fla.ops.gla", exc_type=ImportError)
    inputs = random_inputs("cuda")
    kernel, loop = gla.load_recurrence()(*inputs)[0], gated_recurrence(*inputs)[0]
    # The kernel multiplies in TF32, whose fraction is as long as that of float16.
    assert_close_with_gradients(kernel, loop, inputs, computed_in=torch.float16)


@pytest.mark.gpu
@torch.no_grad()
def test_the_kernel_is_causal_and_serves_long_sequences() -> None:
    pytest.importorskip("fla.ops.gla", exc_type=ImportError)
    attention: Attention = build_attention("gla", hidden_size=128, max_length=4096).cuda().eval()
    x, valid = torch.randn(1, 4096, 128, device="cuda"), all_valid(1, 4096).cuda()
    changed = x.clone()
    changed[:, 1000:] = torch.randn_like(changed[:, 1000:])
    before, after = attention(x, valid), attention(changed, valid)
    assert torch.isfinite(before).all()
    assert_close(after[:, :1000], before[:, :1000], computed_in=torch.float16)
    assert not torch.allclose(after[:, 1000], before[:, 1000])
