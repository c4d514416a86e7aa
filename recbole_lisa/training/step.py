"""One optimizer step: mixed precision, gradient clipping, and a loss that is checked before it does harm."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch

from recbole_lisa.errors import TrainingDivergedError
from recbole_lisa.training.shares import Split, TrainingShare, sum_gradients, sum_losses

DTYPES = {"no": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def amp_of(config: Mapping[str, Any]) -> str:
    """`amp` of a configuration; RecBole's own has `enable_amp` and `enable_scaler` instead."""
    if "amp" in config:
        return str(config["amp"])
    return ("fp16" if config["enable_scaler"] else "bf16") if config["enable_amp"] else "no"


class OptimizerStep:
    """Loss, backward pass and update for one batch, which several processes share.

    Gradients are summed over the processes, then unscaled, then clipped; the scaler lives as long as the run.

    Args:
        model: The module whose parameters the optimizer moves.
        optimizer: The optimizer.
        device: Device of the model.
        amp: `bf16` or `fp16` compute the loss under autocast in that type, float16 with a scaled loss; or `no`.
        clip_grad_norm: Arguments of `torch.nn.utils.clip_grad_norm_`; None does not clip.
        split: Shares a batch among processes.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        device: torch.device,
        amp: str,
        clip_grad_norm: dict[str, Any] | None,
        split: Split,
    ) -> None:
        """Keep the parts; see the class."""
        self.model = model
        self.optimizer = optimizer
        self.device = device
        self.amp = amp
        self.scaler = torch.amp.GradScaler(device.type, enabled=amp == "fp16")
        self.clip_grad_norm = clip_grad_norm
        self.split = split

    def __call__(self, interaction: Any, loss_func: Callable[[Any], Any], where: str) -> list[float]:
        """Move the parameters by one step.

        Args:
            interaction: One training batch, on any device; every process gets the whole of it.
            loss_func: Batch -> scalar loss, or a tuple of parts that are summed.
            where: Names the batch in the error message.

        Returns:
            The parts of the loss of the whole batch, one entry for a scalar.

        Raises:
            TrainingDivergedError: A part is NaN or infinite; the parameters are left as they were.
        """
        self.optimizer.zero_grad()
        share = TrainingShare(interaction, self.split)
        with torch.autocast(self.device.type, dtype=DTYPES[self.amp], enabled=self.amp != "no"):
            losses = loss_func(share.interaction.to(self.device))
        summands = share.weigh(losses if isinstance(losses, tuple) else (losses,))
        parts = sum_losses(summands)
        self._check(parts, where)
        self.scaler.scale(sum(summands)).backward()
        sum_gradients(self.model.parameters())
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
