"""One optimizer step: mixed precision, gradient clipping, a loss checked before the update, one batch on all processes.

Several processes build the same batches in the same order, negatives included, and each takes its rows: process r of P
rows r, r + P, r + 2P, ... The loss L_r of its n_r targets has the weight n_r / sum(n), so the sum of the gradients,
which torch's DistributedDataParallel exchanges, is the gradient of the whole batch:

    grad L = sum_r (n_r / sum(n)) grad L_r

Equal to one process: every loss that is a mean over targets. Not equal: dropout, which each process draws by itself,
and regularisers with another mean (LISA's over distinct items, Routing's over positions of `last_position` batches):
they are averaged by the same weights.
"""

import math
import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from recbole.data.interaction import Interaction
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from recbole_lisa.config.fields import FieldNames
from recbole_lisa.distributed.processes import n_processes, rank, several, sum_in_place
from recbole_lisa.errors import TrainingDivergedError, UsageError

DTYPES = {"no": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
LossFunction = Callable[[Any], Any]  # batch -> scalar loss, or a tuple of parts that are summed


def amp_of(config: Mapping[str, Any]) -> str:
    """`amp` of a configuration; RecBole's configuration has `enable_amp` and `enable_scaler` instead."""
    if "amp" in config:
        return str(config["amp"])
    return ("fp16" if config["enable_scaler"] else "bf16") if config["enable_amp"] else "no"


def rows_of_process(batch: Interaction, fields: FieldNames, number: int, size: int) -> tuple[Interaction, float]:
    """The rows of a batch of N that process `number` of `size` computes, and the fraction of targets in them."""
    if number >= len(batch):  # without rows it takes part in every exchange by the first one, with fraction 0
        return batch[:1], 0.0
    rows = batch[number::size]
    if fields.target_list in batch:
        targets = (batch[fields.target_list] > 0).sum(dim=1)
        return rows, float(targets[number::size].sum()) / float(targets.sum())
    return rows, len(rows) / len(batch)


def loss_parts(losses: Any) -> tuple[Tensor, ...]:
    """The parts of a loss, scalars each; a UsageError for a part that is no tensor of one number."""
    parts = losses if isinstance(losses, tuple) else (losses,)
    for part in parts:
        if not isinstance(part, Tensor) or part.numel() != 1:
            shape = f"a tensor {tuple(part.shape)}" if isinstance(part, Tensor) else type(part).__name__
            raise UsageError(f"calculate_loss gives {shape}, it must give the mean loss, a tensor of one number")
    return tuple(part.reshape(()) for part in parts)


class _Loss(nn.Module):
    """The loss as a forward pass, which DistributedDataParallel can wrap."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, batch: Interaction, loss_function: LossFunction) -> tuple[Tensor, ...]:
        return loss_parts(loss_function(batch))


class OptimizerStep:
    """Loss, backward pass and update for one batch.

    Gradients are summed over the processes, then unscaled, then clipped. The scaler lives as long as the run.

    Args:
        amp: `bf16` or `fp16` compute the loss under autocast in that type, float16 with a scaled loss; or `no`.
        clip_grad_norm: Arguments of `torch.nn.utils.clip_grad_norm_`; None does not clip.
        fields: Names of the columns of a batch.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        device: torch.device,
        amp: str,
        clip_grad_norm: dict[str, Any] | None,
        fields: FieldNames,
    ) -> None:
        self.model, self.optimizer, self.device, self.fields = model, optimizer, device, fields
        self.amp, self.clip_grad_norm = amp, clip_grad_norm
        self.scaler = torch.amp.GradScaler(device.type, enabled=amp == "fp16")
        self.loss: nn.Module = _Loss(model)
        if several():
            # Some models leave a parameter out of some batches; torch warns where none does.
            warnings.filterwarnings(
                "ignore", message="(find_unused_parameters=True was|`broadcast_buffers` is deprecated)"
            )
            self.loss = DistributedDataParallel(self.loss, broadcast_buffers=False, find_unused_parameters=True)

    def __call__(
        self, interaction: Interaction, loss_function: LossFunction, where: str, *, is_first: bool = False
    ) -> list[float]:
        """Update the parameters once; the parts of the loss of the whole batch, one entry for a scalar.

        The batch is whole, on any device, and the same in every process. `where` names it in an error message, which
        names other causes where no update came before (`is_first`).

        Raises:
            TrainingDivergedError: A part is NaN or infinite, and the parameters are left as they were; or a parameter
                is, and the model cannot compute with it.
        """
        self.optimizer.zero_grad()
        weight = 1.0
        if several():
            interaction, weight = rows_of_process(interaction, self.fields, rank(), n_processes())
        with torch.autocast(self.device.type, dtype=DTYPES[self.amp], enabled=self.amp != "no"):
            try:
                losses = self.loss(interaction.to(self.device), loss_function)
            except ValueError as error:  # an operator refuses its operands
                self.check_parameters(where, error)
                raise
        parts: list[float] = sum_in_place(torch.stack([loss.detach().float() for loss in losses]) * weight).tolist()
        if not all(map(math.isfinite, parts)):
            cause = "before the first update: a setting of the model is too large or too small, or the data has NaN"
            loss = f"the training loss is {' + '.join(f'{part:g}' for part in parts)} in {where}"
            raise TrainingDivergedError(f"{loss}, {cause if is_first else self._rate()}")
        # DistributedDataParallel averages the gradients over the processes; the factor makes it the sum.
        self.scaler.scale(sum(losses) * (weight * n_processes()) if several() else sum(losses)).backward()
        if self.clip_grad_norm:
            self.scaler.unscale_(self.optimizer)
            clip_gradients(self.model.parameters(), **self.clip_grad_norm)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        return parts

    def check_parameters(self, where: str, cause: Exception | None = None) -> None:
        """Raise a TrainingDivergedError where a parameter is NaN or infinite."""
        for name, p in self.model.named_parameters():
            if not bool(p.detach().isfinite().all()):
                raise TrainingDivergedError(f"{name} is NaN or infinite in {where}, {self._rate()}") from cause

    def _rate(self) -> str:
        rate = f"at learning rate {self.optimizer.param_groups[0]['lr']:g}"
        return f"{rate}: lower learning_rate or set clip_grad_norm (checkpoints of earlier epochs are intact)"


class RowAdam(torch.optim.Adam):
    """Adam that updates a parameter with a sparse gradient in the rows of the gradient only ("lazy Adam").

    At step t, for the rows that have a gradient g:

        m = b1 m + (1 - b1) g,  v = b2 v + (1 - b2) g^2,  w = w - lr m / (1 - b1^t) / (sqrt(v / (1 - b2^t)) + eps)

    Where every row has a gradient, this is Adam bit for bit. Other rows keep w, m and v. Adam decays their m and v in
    every step and moves w by the rest of m. Dense gradients are Adam's own.
    """

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]  # no closure, no loss
        """Update all parameters once; closure must be None."""
        assert closure is None
        sparse = [
            (p, p.grad.coalesce(), group)
            for group in self.param_groups
            for p in group["params"]
            if p.grad is not None and p.grad.is_sparse
        ]
        for p, _, _ in sparse:
            p.grad = None
        super().step()
        for p, grad, group in sparse:
            self._update_rows(p, grad, group)
            p.grad = grad

    def _update_rows(self, p: Tensor, grad: Tensor, group: dict[str, Any]) -> None:
        """In the order of Adam's own operations, for equal rounding."""
        state = self.state[p]
        if not state:
            state["step"] = torch.zeros((), dtype=torch.float32)
            state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(p), torch.zeros_like(p)
        state["step"] += 1
        t, (beta1, beta2) = state["step"].item(), group["betas"]
        rows, g = grad.indices()[0], grad.values()  # (U,), (U, D)
        first = state["exp_avg"].index_select(0, rows).lerp_(g, 1 - beta1)
        second = state["exp_avg_sq"].index_select(0, rows).mul_(beta2).addcmul_(g, g, value=1 - beta2)
        state["exp_avg"].index_copy_(0, rows, first)
        state["exp_avg_sq"].index_copy_(0, rows, second)
        scale = second.sqrt_().div_((1 - beta2**t) ** 0.5).add_(group["eps"])
        p.index_copy_(0, rows, p.index_select(0, rows).addcdiv_(first, scale, value=-group["lr"] / (1 - beta1**t)))


def clip_gradients(parameters: Iterable[nn.Parameter], **settings: Any) -> None:
    """`torch.nn.utils.clip_grad_norm_`, for sparse gradients as well: rows without a gradient count as 0."""
    clipped: list[Tensor] = []
    for p in parameters:
        if p.grad is not None and p.grad.is_sparse:
            p.grad = p.grad.coalesce()
            rows = torch.empty_like(p.grad.values())
            rows.grad = p.grad.values()  # the same memory, which is scaled in place
            clipped.append(rows)
        else:
            clipped.append(p)
    nn.utils.clip_grad_norm_(clipped, **settings)
