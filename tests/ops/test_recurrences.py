"""The recurrences in chunks against loops over positions."""

import pytest
import torch
from torch import Tensor

from recbole_lisa.ops.recurrences import CHUNK, diagonal_recurrence, selective_recurrence
from tests.helpers import assert_close_with_gradients

every_length = pytest.mark.parametrize("length", [1, 2, 7, CHUNK, CHUNK + 1, 3 * CHUNK - 1, 131])


def diagonal_loop(state: Tensor, decay: Tensor, angle: Tensor, u: Tensor) -> Tensor:
    factor, out = torch.polar(torch.exp(-decay), angle).unsqueeze(1), []
    for t in range(u.shape[-1]):
        state = factor * state + u[..., t]
        out.append(state)
    return torch.stack(out, dim=-1)


def selective_loop(state: Tensor, a: Tensor, x: Tensor, b: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    out = []
    for t in range(x.shape[1]):
        state = a[:, t, :, None, None].exp() * state + x[:, t].unsqueeze(-1) * b[:, t, None, None]
        out.append(torch.einsum("nhps,ns->nhp", state, c[:, t]))
    return torch.stack(out, dim=1), state


def diagonal_inputs(n: int, length: int, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    """State and u as pairs of real numbers, so that gradients are real; slow, fast and turning channels."""
    state, u = torch.randn(4, n, 2, dtype=dtype), torch.randn(4, n, length, 2, dtype=dtype)
    decay = torch.tensor([0.0, 1e-3, 0.3, 5.0], dtype=dtype)
    leaves = [state, decay, torch.rand(4, dtype=dtype) * 6, u]
    return [x.requires_grad_() for x in leaves]


def selective_inputs(n: int, length: int) -> list[Tensor]:
    shapes = (n, 2, 3, 5), (n, length, 2), (n, length, 2, 3), (n, length, 5), (n, length, 5)
    state, a, x, b, c = (torch.randn(shape, dtype=torch.float64) for shape in shapes)
    return [y.requires_grad_() for y in (state, -a.exp(), x, b, c)]


@every_length
def test_diagonal_equals_the_loop_in_outputs_and_gradients(length: int) -> None:
    leaves = diagonal_inputs(3, length)
    state, decay, angle, u = leaves
    arguments = torch.view_as_complex(state), decay, angle, torch.view_as_complex(u)
    ours, expected = (torch.view_as_real(f(*arguments)) for f in (diagonal_recurrence, diagonal_loop))
    assert_close_with_gradients(ours, expected, leaves)


@every_length
def test_selective_equals_the_loop_in_outputs_state_and_gradients(length: int) -> None:
    leaves = selective_inputs(3, length)
    for ours, expected in zip(selective_recurrence(*leaves), selective_loop(*leaves), strict=True):
        assert_close_with_gradients(ours, expected, leaves)


@pytest.mark.parametrize("decay", [0.0, 1e-9, 1e-4, 1.0, 100.0])
def test_diagonal_in_float32_stays_close_at_4096_positions(decay: float) -> None:
    u = torch.randn(2, 1, 4096, dtype=torch.complex64)
    arguments = torch.zeros(2, 1, dtype=torch.complex64), torch.full((2,), decay), torch.tensor([0.0, 6.0])
    ours = diagonal_recurrence(*arguments, u)
    state, *rates = (x.to(torch.promote_types(x.dtype, torch.float64)) for x in arguments)
    expected = diagonal_loop(state, *rates, u.to(torch.complex128))
    assert torch.isfinite(ours.abs()).all()
    assert (ours - expected).abs().max() <= 1e-5 * expected.abs().max()


@pytest.mark.parametrize("a", [0.0, -1e-4, -1.0, -1e4])
def test_selective_in_float32_stays_close_at_4096_positions(a: float) -> None:
    x, b, c = torch.randn(1, 4096, 1, 3), torch.randn(1, 4096, 5), torch.randn(1, 4096, 5)
    inputs = torch.zeros(1, 1, 3, 5), torch.full((1, 4096, 1), a), x, b, c
    ours, expected = selective_recurrence(*inputs)[0], selective_loop(*(y.double() for y in inputs))[0]
    assert (ours - expected).abs().max() <= 1e-5 * expected.abs().max()
