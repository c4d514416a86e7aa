"""One attention problem, and the case that runs it forward, or forward and backward."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Problem:
    """Sizes and settings of one attention."""

    part: str  # sublayer: the models' modules with their projections, or LISA's tables; core: the attention between
    width: int  # D
    n: int = 1
    length: int = 1
    dtype: torch.dtype = torch.float32
    device: torch.device = torch.device("cpu")
    backward: bool = False
    decay: float = 0.0  # of LISA's histogram
    n_items: int = 3417  # V

    def normal(self, *shape: int, seed: int) -> Tensor:
        """Standard-normal tensor, the same for every dtype and device; a leaf if backward."""
        values = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
        return values.to(self.device, self.dtype).requires_grad_(self.backward)

    def integers(self, high: int, *shape: int, seed: int, low: int = 0) -> Tensor:
        """Random integers from low to high - 1, the same for every device."""
        return torch.randint(low, high, shape, generator=torch.Generator().manual_seed(seed)).to(self.device)

    def everything(self) -> Tensor:
        """The mask (N, L) of sequences without padding."""
        return torch.ones(self.n, self.length, dtype=torch.bool, device=self.device)


class Case:
    """A row that is ready to run: its forward pass (N, L, D), and its inputs and parameters."""

    def __init__(self, problem: Problem, forward: Callable[[], Tensor], tensors: Sequence[Tensor]) -> None:
        self.forward = forward
        self.held_mb = sum(x.nbytes for x in tensors) / 2**20
        self.leaves = [x for x in tensors if x.requires_grad]
        shape = (problem.n, problem.length, problem.width)
        self.gradient = problem.normal(*shape, seed=9).detach() if problem.backward else None

    def __call__(self) -> list[Tensor]:
        """Attend once: the output, and with backward the gradient of every leaf."""
        with torch.set_grad_enabled(self.gradient is not None):
            out = self.forward()
        if self.gradient is None:
            return [out]
        return [out, *torch.autograd.grad(out, self.leaves, self.gradient, allow_unused=True, materialize_grads=True)]
