"""One optimizer step: mixed precision, gradient clipping, and a loss that is checked before it does harm."""

import math
from collections.abc import Callable
from typing import Any

import torch

from recbole_lisa.errors import TrainingDivergedError


class OptimizerStep:
    """Loss, backward pass and update for one batch.

    Gradients are unscaled before they are clipped, and the scaler lives as long as the run.

    Args:
        model: The module whose parameters the optimizer moves.
        optimizer: The optimizer.
        device: Device of the model.
        enable_amp: Compute the loss under autocast, in bfloat16, or in float16 where a scaler protects it.
        enable_scaler: Scale the loss of float16 autocast.
        clip_grad_norm: Arguments of `torch.nn.utils.clip_grad_norm_`; None does not clip.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        device: torch.device,
        enable_amp: bool,
        enable_scaler: bool,
        clip_grad_norm: dict[str, Any] | None,
    ) -> None:
        """Keep the parts; see the class."""
        self.model = model
        self.optimizer = optimizer
        self.device = device
        self.enable_amp = enable_amp
        self.dtype = torch.float16 if enable_scaler else torch.bfloat16
        self.scaler = torch.amp.GradScaler(device.type, enabled=enable_scaler)
        self.clip_grad_norm = clip_grad_norm

    def __call__(self, interaction: Any, loss_func: Callable[[Any], Any], where: str) -> list[float]:
        """Move the parameters by one step.

        Args:
            interaction: One training batch, on any device.
            loss_func: Batch -> scalar loss, or a tuple of parts that are summed.
            where: Names the batch in the error message.

        Returns:
            The parts of the loss, one entry for a scalar.

        Raises:
            TrainingDivergedError: A part is NaN or infinite; the parameters are left as they were.
        """
        self.optimizer.zero_grad()
        with torch.autocast(self.device.type, dtype=self.dtype, enabled=self.enable_amp):
            losses = loss_func(interaction.to(self.device))
        losses = losses if isinstance(losses, tuple) else (losses,)
        parts: list[float] = torch.stack([part.detach().float() for part in losses]).tolist()
        self._check(parts, where)
        self.scaler.scale(sum(losses)).backward()
        if self.clip_grad_norm:
            self.scaler.unscale_(self.optimizer)
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), **self.clip_grad_norm)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        return parts

    def _check(self, parts: list[float], where: str) -> None:
        if all(map(math.isfinite, parts)):
            return
        rate = self.optimizer.param_groups[0]["lr"]
        raise TrainingDivergedError(
            f"the training loss is {' + '.join(f'{part:g}' for part in parts)} in {where}, at learning rate "
            f"{rate:g}: lower learning_rate or set clip_grad_norm (checkpoints of earlier epochs are intact)"
        )
