"""Random arguments of the LISA functions, and what several tests do with them."""

from typing import Any

import torch
from torch import Tensor


def operands(
    n: int,
    length: int,
    b: int,
    w: int,
    *,
    d: int = 6,
    kind: str = "hard",
    decay: str = "0",
    n_items: int | None = None,
    dtype: torch.dtype = torch.float64,
) -> tuple[dict[str, Any], list[Tensor]]:
    """Arguments of lisa_attention, or with `n_items` of lisa_attention_items, and the leaves of their gradients.

    `kind` is hard, soft or straight_through. `decay` is a number, scalar (a tensor) or per_step. With `n_items`, codes
    and assignment have a row for each item instead of each position.
    """
    codes = torch.randint(w, (n, length, b) if n_items is None else (n_items, b))
    table = torch.randn(b, w, w, dtype=dtype).requires_grad_()
    values = torch.randn(b, w, d, dtype=dtype).requires_grad_()
    soft = torch.randn(*codes.shape, w, dtype=dtype).softmax(dim=-1).requires_grad_()
    straight_through = torch.nn.functional.one_hot(codes, w).to(dtype) + (soft - soft.detach())
    decays = {"scalar": torch.tensor(0.2, dtype=dtype), "per_step": torch.rand(n, length, dtype=dtype)}
    lengths = torch.randint(0, length + 1, (n,))
    lengths[0] = length
    arguments = {
        "codes": codes,
        "table": table,
        "values": values,
        "assignment": {"hard": None, "soft": soft, "straight_through": straight_through}[kind],
        "decay": decays[decay].requires_grad_() if decay in decays else float(decay),
        "valid": torch.arange(length) < lengths.unsqueeze(1),
    }
    if kind == "straight_through":
        arguments["straight_through"] = True
    if n_items is not None:
        arguments["items"] = torch.randint(n_items, (n, length))
    leaves = [None if kind == "hard" else soft, table, values, arguments["decay"]]
    return arguments, [x for x in leaves if isinstance(x, Tensor)]


def gathered(arguments: dict[str, Any]) -> dict[str, Any]:
    """The arguments of lisa_attention that stand for those of lisa_attention_items."""
    rest = dict(arguments)
    items, keys = rest.pop("items"), rest["assignment"]
    return {**rest, "codes": rest["codes"][items], "assignment": None if keys is None else keys[items]}


def moved(arguments: dict[str, Any], *, to: str | torch.dtype) -> dict[str, Any]:
    """The arguments on a device, or their floating-point tensors in a type."""

    def move(x: Any) -> Any:
        if not isinstance(x, Tensor) or (isinstance(to, torch.dtype) and not x.is_floating_point()):
            return x
        return x.to(to)

    return {name: move(x) for name, x in arguments.items()}


def with_gradients(out: Tensor, leaves: list[Tensor]) -> list[Tensor]:
    """An output and its gradients to `leaves` under fixed weights."""
    weight = torch.cos(torch.arange(out.numel(), dtype=out.dtype)).view_as(out)
    return [out, *torch.autograd.grad(out, leaves, weight, retain_graph=True, materialize_grads=True)]
