"""What several tests share: comparisons of tensors, masks, and small data sets on disk."""

from collections.abc import Iterable, Sequence
from pathlib import Path

import torch

TOLERANCES: dict[torch.dtype, dict[str, float]] = {
    torch.float64: {"rtol": 1e-10, "atol": 1e-10},
    torch.float32: {"rtol": 1e-5, "atol": 1e-6},
    torch.float16: {"rtol": 1e-2, "atol": 1e-2},
    torch.bfloat16: {"rtol": 2e-2, "atol": 2e-2},
}
"""How close two ways to compute the same value must be, by the type they compute in."""


def assert_close(actual: torch.Tensor, expected: torch.Tensor, *, computed_in: torch.dtype | None = None) -> None:
    """Compare two tensors within the tolerance of the type they were computed in.

    Args:
        actual: The tensor under test.
        expected: What it must equal, of the same shape.
        computed_in: The type that sets the tolerance; by default the type of `actual`.

    Raises:
        AssertionError: The tensors differ.
    """
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


def write_interactions(
    folder: Path, dataset: str, rows: Iterable[tuple[object, object, object]] = (("u", "i", 1),)
) -> Path:
    """Write an atomic file `<folder>/<dataset>/<dataset>.inter`.

    Args:
        folder: The `data_path` of a run.
        dataset: Name of the data set.
        rows: (user, item, time in seconds) of each interaction, in file order.

    Returns:
        The file.
    """
    file = folder / dataset / f"{dataset}.inter"
    file.parent.mkdir(parents=True, exist_ok=True)
    lines = ["user_id:token\titem_id:token\ttimestamp:float"]
    lines += ["\t".join(str(value) for value in row) for row in rows]
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return file
