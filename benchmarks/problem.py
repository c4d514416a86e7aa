"""One attention problem, and the object that runs it forward, or forward and backward."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Problem:
    """What is attended over.

    Attributes:
        part: sublayer (the models' own modules: projections on one side, tables from parameters on the other) or core
            (what lies between).
        n: sequences N.
        length: positions L.
        width: D.
        dtype: of inputs and parameters.
        device: where they lie.
        backward: time the backward pass too.
        decay: of LISA's histogram.
        n_items: items V that the positions are drawn from.
    """

    part: str
    n: int
    length: int
    width: int
    dtype: torch.dtype = torch.float32
    device: torch.device = torch.device("cpu")
    backward: bool = False
    decay: float = 0.0
    n_items: int = 3417

    def normal(self, *shape: int, seed: int) -> Tensor:
        """A standard-normal tensor, the same numbers for every dtype and device; a leaf when backward."""
        values = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
        return self.place(values).requires_grad_(self.backward)

    def place(self, values: Tensor) -> Tensor:
        """The tensor in the problem's dtype, on its device."""
        return values.to(self.device, self.dtype)

    def integers(self, high: int, *shape: int, seed: int, low: int = 0) -> Tensor:
        """Random integers in low..high - 1, the same for every device."""
        generator = torch.Generator().manual_seed(seed)
        return torch.randint(low, high, shape, generator=generator).to(self.device)


class Case:
    """A row of the benchmark, ready to run.

    Args:
        problem: What it solves.
        forward: Its attention, (N, L, D).
        tensors: Inputs and parameters; the gradient is taken by those that require one.
        note: What the row chose for itself, if anything.
    """

    def __init__(
        self, problem: Problem, forward: Callable[[], Tensor], tensors: Sequence[Tensor], note: str = ""
    ) -> None:
        self.forward = forward
        self.tensors = tuple(tensors)
        self.note = note
        self.backward = problem.backward
        self.leaves = [x for x in self.tensors if x.requires_grad]
        shape = (problem.n, problem.length, problem.width)
        self.gradient = problem.normal(*shape, seed=9).detach() if problem.backward else None

    def __call__(self) -> list[Tensor]:
        """Attend once; the output, and with backward the gradient of every leaf (0 where it does not matter)."""
        with torch.set_grad_enabled(self.backward):
            out = self.forward()
        if self.gradient is None:
            return [out]
        return [out, *torch.autograd.grad(out, self.leaves, self.gradient, allow_unused=True, materialize_grads=True)]

    @property
    def held_mb(self) -> float:
        """MB of inputs and parameters."""
        return sum(x.numel() * x.element_size() for x in self.tensors) / 2**20
