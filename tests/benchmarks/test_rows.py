import functools
from typing import Any

import pytest
import torch

from benchmarks import gate, rows
from benchmarks.gate import GateError, check_rows
from benchmarks.options import PARTS
from benchmarks.problem import Problem
from benchmarks.rows import MECHANISM_SETTINGS, PassOn, rows_of, without_projections
from recbole_lisa.attention import MECHANISMS, build_attention
from tests.helpers import assert_close

SHAPE: dict[str, Any] = {"n": 2, "length": 21, "width": 16, "n_items": 30}
BUILT = [name for name, (mechanism, _) in MECHANISM_SETTINGS.items() if mechanism in MECHANISMS]


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("part", PARTS)
def test_every_row_attends_and_differentiates(part: str, backward: bool) -> None:
    for name, build in rows_of(part, backward=backward).items():
        case = build(Problem(part, **SHAPE, backward=backward))
        out, *gradients = case()
        assert out.numel() == 2 * 21 * 16, name
        assert torch.isfinite(out).all(), name
        assert len(gradients) == (len(case.leaves) if backward else 0), name
        assert bool(case.leaves) or not backward
        assert not out.requires_grad or backward
        assert case.held_mb > 0


def test_every_mechanism_has_a_row_with_settings_of_its_own() -> None:
    covered = {mechanism for mechanism, _ in MECHANISM_SETTINGS.values()} | {"full", "lisa"}
    assert set(MECHANISMS) <= covered
    names = rows_of("sublayer", backward=False)
    assert set(BUILT) <= set(names)


def test_a_mechanism_without_settings_gets_a_row_of_its_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(MECHANISMS, "mine", MECHANISMS["full"])
    out = rows_of("core", backward=False)["mine"](Problem("core", **SHAPE))()
    assert out[0].shape == (2, 21, 16)


@pytest.mark.parametrize("name", BUILT)
def test_the_core_has_no_projection(name: str) -> None:
    mechanism, settings = MECHANISM_SETTINGS[name]
    module = build_attention(mechanism, hidden_size=16, max_length=21, **settings)
    before = [m for m in module.modules() if isinstance(m, torch.nn.Linear)]
    without_projections(module, 16)
    assert before
    assert not [m for m in module.modules() if isinstance(m, torch.nn.Linear)]
    assert len([m for m in module.modules() if isinstance(m, PassOn)]) == len(before)


def test_the_same_problem_has_the_same_inputs_in_every_dtype() -> None:
    single, double = (
        rows_of("core", backward=False)["LISA-128 soft"](Problem("core", **SHAPE, dtype=dtype))()[0]
        for dtype in (torch.float32, torch.float64)
    )
    assert_close(single, double, computed_in=torch.float32)


@pytest.mark.parametrize("backward", [False, True], ids=["forward", "backward"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("part", PARTS)
def test_the_gate_lets_the_rows_pass(part: str, dtype: torch.dtype, backward: bool) -> None:
    problem = Problem(part, 1, 1, 16, dtype=dtype, backward=backward, decay=0.1)
    checked = [name for name in rows_of(part, backward=backward) if name in gate.TWINS]
    check_rows(checked, problem)
    assert len(checked) == 6


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("name", gate.TWINS)
def test_the_gate_catches_a_wrong_output(monkeypatch: pytest.MonkeyPatch, part: str, name: str) -> None:
    right = rows_of(part, backward=False)[name]

    def wrong(problem: Problem) -> Any:
        case = right(problem)
        forward = case.forward
        case.forward = lambda: forward() * 1.01
        return case

    monkeypatch.setattr(gate, "rows_of", lambda part, backward: {name: wrong})
    with pytest.raises(GateError, match=rf"{name} \({part}\) is wrong, nothing was timed: its output differs"):
        check_rows([name], Problem(part, 1, 1, 16))


def test_the_gate_catches_a_wrong_gradient_of_the_op(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(*operands: torch.Tensor, **settings: Any) -> torch.Tensor:
        items, codes, table, values = operands
        return rows.attend_fused(items, codes, table.detach() + 0 * table, values, **settings)

    row = functools.partial(rows.lisa, n_codewords=16, attend=wrong)
    monkeypatch.setattr(gate, "rows_of", lambda part, backward: {"LISA-128": row})
    check_rows(["LISA-128"], Problem("core", 1, 1, 16))
    with pytest.raises(GateError, match=r"its gradient \d differs"):
        check_rows(["LISA-128"], Problem("core", 1, 1, 16, backward=True))
