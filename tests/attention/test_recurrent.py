"""The mechanisms with a state against loops over positions, written from their equations."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn.functional import conv1d, elu, pad, silu, softplus

from recbole_lisa.attention import GatedRotaryAttention, LinearRecurrentUnit, SelectiveSSM
from recbole_lisa.attention.recurrent import ChannelConvolution, RecurrentAttention
from tests.attention.references import D
from tests.helpers import all_valid, assert_close, assert_close_with_gradients, ragged


def convolved(layer: ChannelConvolution, x: Tensor) -> Tensor:
    """torch's convolution with three zeros before the first position."""
    columns = pad(x.transpose(1, 2), (3, 0))
    return conv1d(columns, layer.weight.squeeze(2), layer.bias, groups=x.shape[2]).transpose(1, 2)


def recurrent_unit(attention: LinearRecurrentUnit, x: Tensor) -> Tensor:
    radius = torch.exp(-torch.exp(attention.log_decay))
    factor, gamma = torch.polar(radius, attention.angle), torch.sqrt(1 - radius**2)
    into, out_of = (torch.complex(*y.chunk(2, dim=-1)) for y in (attention.input.weight.t(), attention.output.weight))
    shift = torch.complex(*attention.input.bias.chunk(2))
    h, out = torch.zeros(len(x), len(radius), dtype=torch.complex128), []
    for t in range(x.shape[1]):
        h = factor * h + gamma * (x[:, t].to(into.dtype) @ into + shift)
        out.append((h @ out_of.conj().t()).real + attention.output.bias + attention.skip * x[:, t])
    return torch.stack(out, dim=1)


def selective(attention: SelectiveSSM, x: Tensor) -> Tensor:
    n_heads, (width, size, _) = len(attention.skip), attention.parts
    z, mixed, t_in = attention.input(x).split([width, width + 2 * size, n_heads], dim=-1)
    values, b, c = silu(convolved(attention.convolution, mixed)).split([width, size, size], dim=-1)
    step, rate = softplus(t_in + attention.step_bias), attention.log_decay.exp()
    state, out = torch.zeros(len(x), n_heads, width // n_heads, size, dtype=x.dtype), []
    for t in range(x.shape[1]):
        v, dt = values[:, t].view(len(x), n_heads, -1), step[:, t]
        state = torch.exp(-dt * rate)[..., None, None] * state
        state = state + torch.einsum("nh,nhp,ns->nhps", dt, v, b[:, t])
        y = torch.einsum("nhps,ns->nhp", state, c[:, t]) + attention.skip.unsqueeze(1) * v
        out.append(attention.norm(y.flatten(1) * silu(z[:, t])))
    return attention.output(torch.stack(out, dim=1))


def rotary(attention: GatedRotaryAttention, x: Tensor) -> Tensor:
    """Rotation by matrices (D, D), one a position, and sums over all earlier positions."""
    value = attention.value(x)
    query, key = (elu(attention.query_key(value)) + 1).chunk(2, dim=-1)
    turns, out = [], []
    pairs = 10000 ** (-torch.arange(0, D, 2, dtype=torch.float64) / D)
    for t in range(x.shape[1]):
        angles = t * pairs
        turns.append(torch.block_diag(*(torch.stack([a.cos(), -a.sin(), a.sin(), a.cos()]).view(2, 2) for a in angles)))
        heads = []
        for i in torch.arange(D).chunk(attention.n_heads):
            weights = [(query[:, t] @ turns[t].t())[:, i] * (key[:, s] @ turns[s].t())[:, i] for s in range(t + 1)]
            plain = [query[:, t, i] * key[:, s, i] for s in range(t + 1)]
            sums = sum(w.sum(-1, keepdim=True) * value[:, s, i] for s, w in enumerate(weights))
            heads.append(sums / sum(p.sum(-1, keepdim=True) for p in plain))
        out.append(torch.cat(heads, dim=-1))
    local = silu(convolved(attention.convolution, value))
    return attention.output((torch.stack(out, dim=1) + local) * silu(attention.gate(x)))


CASES: dict[str, tuple[Callable[[], RecurrentAttention], Callable[..., Tensor]]] = {
    "lru": (lambda: LinearRecurrentUnit(hidden_size=D), recurrent_unit),
    "mamba2": (lambda: SelectiveSSM(hidden_size=D, n_heads=4, state_size=5), selective),
    "mamba2-1-head": (lambda: SelectiveSSM(hidden_size=D, n_heads=1, state_size=3), selective),
    "grela": (lambda: GatedRotaryAttention(hidden_size=D, n_heads=4), rotary),
    "grela-1-head": (lambda: GatedRotaryAttention(hidden_size=D, n_heads=1), rotary),
}
every_case = pytest.mark.parametrize("case", CASES)


@every_case
@pytest.mark.parametrize("length", [1, 3, 29, 53])
def test_module_equals_its_equation_in_outputs_and_gradients(case: str, length: int) -> None:
    build, equation = CASES[case]
    attention = build().double()
    x = torch.randn(2, length, D, dtype=torch.float64, requires_grad=True)
    leaves = [x, *attention.parameters()]
    assert_close_with_gradients(attention(x, all_valid(2, length)), equation(attention, x), leaves)


@every_case
def test_steps_and_the_state_after_them_equal_the_whole(case: str) -> None:
    """Also from a state in the middle, in float64, and with padding."""
    attention = CASES[case][0]().double().eval()
    x, valid = torch.randn(3, 60, D, dtype=torch.float64), ragged(3, 60)
    whole, lengths = attention(x, all_valid(3, 60)), valid.sum(dim=1)
    state, ends = attention.init_state(3), attention.state_of(x, valid)
    for t in range(60):
        out, state = attention.step(state, x[:, t])
        assert_close(out, whole[:, t])
        for n in (lengths == t + 1).nonzero().flatten().tolist():
            for part, end in zip(state, ends, strict=True):
                assert end.dtype == torch.float64
                assert_close(end[n], part[n])


@pytest.mark.parametrize("shift", [1, 10**6])
def test_rotary_attention_depends_on_distances_only(shift: int) -> None:
    attention = GatedRotaryAttention(hidden_size=D).double().eval()
    x, empty = torch.randn(2, 9, D, dtype=torch.float64), attention.init_state(2)
    start = empty._replace(position=torch.full((2,), float(shift), dtype=torch.float64))
    out, before = (attention.run(state, x, all_valid(2, 9))[0] for state in (start, empty))
    torch.testing.assert_close(out, before, rtol=0, atol=1e-9)
    state = attention.state_of(x, all_valid(2, 9))
    moved = state._replace(position=state.position + 1)
    assert not torch.isclose(attention.step(state, x[:, 0])[0], attention.step(moved, x[:, 0])[0]).all()


def test_radii_and_steps_start_in_the_published_ranges() -> None:
    radius = torch.exp(-torch.exp(LinearRecurrentUnit(hidden_size=400).log_decay))
    assert 0.8 <= radius.min() < 0.82
    assert 0.98 < radius.max() <= 0.99
    attention = SelectiveSSM(hidden_size=400, n_heads=800)
    step, rate = softplus(attention.step_bias), attention.log_decay.exp()
    assert 1e-3 <= step.min() * 1.001 < 1.1e-3
    assert 0.09 < step.max() <= 0.1001
    assert 0.999 <= rate.min() < 1.2
    assert 15.8 < rate.max() <= 16.001


@pytest.mark.parametrize("case", ["lru", "mamba2"])
@pytest.mark.parametrize("log_decay", [1e4, 3e38])
def test_the_fastest_decays_forget_at_once_and_keep_numbers(case: str, log_decay: float) -> None:
    attention = CASES[case][0]()
    torch.nn.init.constant_(attention.log_decay, log_decay)
    x = torch.randn(2, 30, D)
    out = attention(x, all_valid(2, 30))
    out.sum().backward()
    assert out.isfinite().all()
    assert all(p.grad is None or p.grad.isfinite().all() for p in attention.parameters())
    changed = torch.cat([torch.randn(2, 10, D), x[:, 10:]], dim=1)
    assert_close(attention(changed, all_valid(2, 30))[:, 13:], out[:, 13:])
