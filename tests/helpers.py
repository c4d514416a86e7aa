"""What several tests share: comparisons of tensors, masks, and small data sets on disk."""

import os
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

import torch
from pytest import CaptureFixture

ROOT = Path(__file__).parents[1]
TOLERANCES: dict[torch.dtype, dict[str, float]] = {
    torch.float64: {"rtol": 1e-10, "atol": 1e-10},
    torch.float32: {"rtol": 1e-5, "atol": 1e-6},
    torch.float16: {"rtol": 1e-2, "atol": 1e-2},
    torch.bfloat16: {"rtol": 2e-2, "atol": 2e-2},
}
"""How close two ways to compute the same value must be, by the type they compute in."""


def assert_close(actual: torch.Tensor, expected: torch.Tensor, *, computed_in: torch.dtype | None = None) -> None:
    """Compare two tensors within the tolerance of the type they were computed in, by default that of `actual`."""
    tolerance = TOLERANCES[computed_in or actual.dtype]
    torch.testing.assert_close(actual, expected, check_dtype=False, **tolerance)


def assert_close_with_gradients(
    actual: torch.Tensor, expected: torch.Tensor, inputs: Sequence[torch.Tensor], computed_in: torch.dtype | None = None
) -> None:
    """Compare two tensors, and their gradients to `inputs` under random weights; no gradient is as good as 0."""
    assert_close(actual, expected, computed_in=computed_in)
    settings = {"grad_outputs": torch.randn_like(actual), "retain_graph": True, "materialize_grads": True}
    gradients = [torch.autograd.grad(y, inputs, **settings) for y in (actual, expected)]
    for ours, theirs in zip(*gradients, strict=True):
        assert_close(ours, theirs, computed_in=computed_in)


def all_valid(n: int, length: int) -> torch.Tensor:
    """A mask (N, L) without padding."""
    return torch.ones(n, length, dtype=torch.bool)


def ragged(n: int, length: int) -> torch.Tensor:
    """A mask (N, L): row 0 full, the others of random lengths from 1 up."""
    lengths = torch.randint(1, length + 1, (n,))
    lengths[0] = length
    return torch.arange(length) < lengths.unsqueeze(1)


def run_python(
    code: str, *arguments: str, cwd: Path | None = None, status: int = 0, **environment: str
) -> tuple[str, str]:
    """Standard output and errors of a program in a fresh process that finds this checkout and ends with a status."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
    command = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == status, done.stderr[-3000:]
    return done.stdout, done.stderr


def refusal(capsys: CaptureFixture[str], status: int) -> str:
    """The one line with which a command refused its arguments, with status 2 and nothing on standard output."""
    output, errors = capsys.readouterr()
    assert (status, output, errors.count("\n")) == (2, "", 1)
    assert errors.startswith("error: ")
    return errors


def write_interactions(
    folder: Path, dataset: str, rows: Iterable[tuple[object, object, object]] = (("u", "i", 1),)
) -> Path:
    """Write the atomic file `<folder>/<dataset>/<dataset>.inter` of (user, item, time in seconds)."""
    file = folder / dataset / f"{dataset}.inter"
    file.parent.mkdir(parents=True, exist_ok=True)
    lines = ["user_id:token\titem_id:token\ttimestamp:float"]
    lines += ["\t".join(str(value) for value in row) for row in rows]
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return file
