"""What several tests share: the tolerances, and small data sets on disk."""

from collections.abc import Iterable
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
