"""What changes from step to step beside the gradient: the learning rate, and a moving average of the weights."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR


class LearningRate(LambdaLR):
    """learning_rate * min(1, (s + 1) / warmup) at step s; after the warm-up down to 0 at step n_steps, set later.

    The decay is none, cosine or linear.
    """

    n_steps = 0

    def __init__(self, optimizer: torch.optim.Optimizer, *, warmup: int, decay: str) -> None:
        self.warmup = warmup

        def factor(step: int) -> float:
            if step < warmup:
                return (step + 1) / warmup
            done = min((step - warmup) / max(self.n_steps - warmup, 1), 1.0)
            return {"none": 1.0, "linear": 1 - done, "cosine": (1 + math.cos(math.pi * done)) / 2}[decay]

        super().__init__(optimizer, factor)

    def set_steps(self, n_steps: int, log: Callable[[str], None]) -> None:
        """Set the steps of the whole run; log a warm-up that takes all of them."""
        self.n_steps = n_steps
        if self.warmup >= n_steps > 0:
            rates = f"the learning rate only rises, to {self.base_lrs[0] * n_steps / self.warmup:.3g}"
            log(f"learning_rate_warmup is {self.warmup:,} steps, the whole run has {n_steps:,}: {rates}")


class WeightAverage:
    """a = d a + (1 - d) w for each parameter w, no buffer, at step t, with d = min(decay, (1 + t) / (10 + t))."""

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.weights, self.decay, self.n_updates = list(model.parameters()), decay, 0
        self.other = [weight.detach().clone() for weight in self.weights]
        """The averages; inside `applied`, the weights of the training."""

    def set_steps(self, n_steps: int, log: Callable[[str], None]) -> None:
        """Log a decay that a run of so many steps does not reach."""
        if n_steps > 0 and (last := self._decay_at(n_steps - 1)) < self.decay:
            log(f"ema_decay is {self.decay}, but in the {n_steps:,} steps of the whole run it rises to {last:.3g} only")

    @torch.no_grad()
    def update(self) -> None:
        """Take the weights after a step into the averages."""
        decay = self._decay_at(self.n_updates)
        self.n_updates += 1
        for average, weight in zip(self.other, self.weights, strict=True):
            average.lerp_(weight, 1 - decay)

    def _decay_at(self, step: int) -> float:
        return min(self.decay, (1 + step) / (10 + step))

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Put the averages into the model, and at the end the weights of the training."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    def state_dict(self) -> dict[str, Any]:
        """Inside `applied`: the weights of the training, whose averages are the model's."""
        return {"weights": self.other, "n_updates": self.n_updates}

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a state, while the model has the averages."""
        self.n_updates = state["n_updates"]
        for other, saved in zip(self.other, state["weights"], strict=True):
            other.copy_(saved)
        self._swap()

    @torch.no_grad()
    def _swap(self) -> None:
        for other, weight in zip(self.other, self.weights, strict=True):
            kept = weight.clone()
            weight.copy_(other)
            other.copy_(kept)
