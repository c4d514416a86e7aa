"""What each of several processes does of a batch, and how their work becomes that of one process.

Every process builds the same batches in the same order, negatives included, and takes its rows of each: the loss is
weighted so that the sum of the processes' gradients is the gradient of the whole batch. Batches of an evaluation go
to the processes in turn and as they are, so that every history is scored once, in the company it has in one process.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from recbole.data.interaction import Interaction
from torch import Tensor

from recbole_lisa.config.fields import FieldNames
from recbole_lisa.data.dataloader import EvalBatch, EvalLoader
from recbole_lisa.distributed.processes import gathered, n_processes, rank, several, sum_in_place
from recbole_lisa.model.batch_share import split_batch

Split = Callable[[Interaction, int, int], tuple[Interaction, tuple[float, ...]]]
"""(batch, number of the process, how many there are) -> its rows, and the weights of the parts of their loss."""

_PER_HISTORY = ("rec.topk", "rec.items", "rec.meanrank", "rec.score", "data.label")


class TrainingShare:
    """The part of a training batch that this process computes.

    Attributes:
        interaction: Its rows; all of them in a single process.
        weights: What each part of its loss counts for in that of the batch; a single number serves all parts.
    """

    def __init__(self, batch: Interaction, split: Split) -> None:
        self.interaction, self.weights = split(batch, rank(), n_processes()) if several() else (batch, (1.0,))

    def weigh(self, parts: Sequence[Tensor]) -> list[Tensor]:
        """The parts of the loss of these rows as summands of those of the whole batch."""
        if not several():
            return list(parts)
        weights = self.weights * len(parts) if len(self.weights) == 1 else self.weights
        return [part * weight for part, weight in zip(parts, weights, strict=True)]


def split_for(model: torch.nn.Module, fields: FieldNames) -> Split:
    """How the batches of a model are shared: as it says itself by a method `share`, else as means over positions.

    Args:
        model: The model.
        fields: Names of the columns of its batches.
    """

    def split(batch: Interaction, number: int, size: int) -> tuple[Interaction, tuple[float, ...]]:
        rows, weight = split_batch(batch, fields, number, size)
        return rows, (weight,)

    own: Split = getattr(model, "share", split)
    return own


def sum_losses(parts: Sequence[Tensor]) -> list[float]:
    """The parts of the loss of the whole batch."""
    values: list[float] = sum_in_place(torch.stack([part.detach().float() for part in parts])).tolist()
    return values


def sum_gradients(parameters: Iterable[torch.nn.Parameter]) -> None:
    """Give every process the sum of the processes' gradients, in one message.

    A parameter that has a gradient nowhere keeps none: an optimizer leaves it alone, as in a single process.
    """
    if not several():
        return
    known = [p for p in parameters if p.requires_grad]
    has_gradient = torch.tensor([float(p.grad is not None) for p in known], device=known[0].device)
    own = [torch.zeros_like(p).flatten() if p.grad is None else p.grad.flatten() for p in known]
    total = sum_in_place(torch.cat([*own, has_gradient]))
    *gradients, counts = total.split([*(p.numel() for p in known), len(known)])
    for p, gradient, count in zip(known, gradients, counts.tolist(), strict=True):
        p.grad = gradient.view_as(p).to(p.dtype) if count else None


class EvalShare:
    """Every n-th batch of an evaluation loader, n being the number of processes.

    Args:
        loader: The histories of one phase.
    """

    def __init__(self, loader: EvalLoader) -> None:
        self.loader = loader

    def __len__(self) -> int:
        """Number of batches of this process; may be 0."""
        return len(range(rank(), len(self.loader), n_processes()))

    def __iter__(self) -> Iterator[EvalBatch]:
        """Its batches."""
        if not several():
            return iter(self.loader)
        return self.loader.batches(range(rank(), len(self.loader), n_processes()))


def merge_collected(collected: Any, loader: EvalLoader) -> None:
    """Complete what this process collected by what the others did, in the order of a single process.

    Args:
        collected: RecBole's `DataStruct` with a row a history; changed in place.
        loader: The loader that the processes shared.
    """
    if not several():
        return
    total = len(loader.windows)
    sizes = [min(loader.batch_size, total - start) for start in range(0, total, loader.batch_size)]
    shares = gathered({name: collected.get(name).cpu() for name in _PER_HISTORY if name in collected})
    for name in dict.fromkeys(name for share in shares for name in share):
        parts: list[Any] = [None] * len(sizes)
        for number, share in enumerate(shares):
            if name in share:
                parts[number :: len(shares)] = share[name].split(sizes[number :: len(shares)])
        collected.set(name, torch.cat(parts))
