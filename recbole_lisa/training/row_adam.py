"""Adam for item tables whose gradient holds the rows of a batch only, so that a step costs the same at any V."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn


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
