"""Checks of operands, before any computation: one ValueError that names the operand, and what it must be."""

import math
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from functools import cache, wraps
from numbers import Integral, Real
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
"""Types of an index or a code."""
MOST_CODEWORDS = 2**31
"""Codes are int32 at most."""
MIN_TEMPERATURE = 1e-30
"""Scores up to 1e8 over such a temperature are finite in float32; infinite ones would make a softmax NaN."""
_FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
_KINDS = {
    "floating-point": _FLOATS,
    "complex": (torch.complex64, torch.complex128),
    "integer": INTEGERS,
    "int64": (torch.int64,),
    "bool": (torch.bool,),
}


def differentiable_once(backward: Callable[..., Any]) -> Callable[..., Any]:
    """once_differentiable, with a RuntimeError under create_graph=True also where allow_unused would give None."""
    once = once_differentiable(backward)

    @wraps(backward)
    def checked(ctx: Any, *grads: Any) -> Any:
        if torch.is_grad_enabled() and not torch.compiler.is_compiling():
            name = backward.__qualname__.split(".")[0].lstrip("_")
            raise RuntimeError(f"{name} has no second derivative: leave out create_graph=True")
        return once(ctx, *grads)

    return checked


def check_operands(forms: str, *operands: Any) -> None:
    """Refuse operands that are no tensors, or whose types and shapes do not fit each other.

        check_operands("query: N L+ D; key: N M D; bucket: int64 N R M", query, key, bucket)

    A form is a name, a kind of numbers (a key of _KINDS) and a letter for each dimension. A letter is the same size in
    all operands, at least 1 with +. Three dots in front stand for any dimensions. With ? None is no mistake. Operands
    without a kind have one floating-point type, or under autocast any. All are dense and on one device, not on meta.
    Within torch.compile nothing is checked.
    """
    if torch.compiler.is_compiling():
        return
    sizes: dict[str, int] = {}
    common: torch.dtype | None = None
    device: torch.device | None = None
    for (name, kind, letters, skips), x in zip(_parsed(forms), operands, strict=True):
        if x is None and name.endswith("?"):
            continue
        if isinstance(x, Tensor):
            device = device or x.device
            if x.layout != torch.strided or x.is_nested or x.is_meta or x.device != device:
                right = "a dense tensor with numbers, on one device with the others"
                raise ValueError(f"{name.rstrip('?')} must be {right}, got {x.dtype} {x.layout} on {x.device}")
        known = sizes.copy()
        fits = isinstance(x, Tensor) and x.dim() >= len(letters) and (skips or x.dim() == len(letters))
        if fits:
            for letter, size in zip(letters, x.shape[x.dim() - len(letters) :], strict=True):
                fits = fits and sizes.setdefault(letter[0], size) == size and (size > 0 or len(letter) == 1)
            fits = fits and x.dtype in _KINDS[kind or "floating-point"]
            if fits and not kind:
                fits = common in (None, x.dtype) or torch.is_autocast_enabled(x.device.type)
                common = common or x.dtype
        if not fits:
            with_sizes = ", ".join(f"{one[0]} = {known[one[0]]}" for one in letters if one[0] in known)
            shape = ", ".join((*["..."] * skips, *letters)).replace("+", " >= 1")
            is_now = f"{x.dtype} {tuple(x.shape)}" if isinstance(x, Tensor) else type(x).__name__
            right = f"{kind or common or 'floating-point'} ({shape}){with_sizes and f' with {with_sizes}'}"
            raise ValueError(f"{name.rstrip('?')} must be {right}, got {is_now}")


@cache
def _parsed(forms: str) -> list[tuple[str, str, list[str], bool]]:
    """Name, kind or nothing, letters, and whether dots stand before them."""
    parsed = []
    for form in forms.split("; "):
        name, *letters = form.split(" ")
        kind = letters.pop(0) if letters[0] in _KINDS else ""
        skips = letters[0] == "..."
        parsed.append((name.removesuffix(":"), kind, letters[skips:], skips))
    return parsed


def check_sizes(least: int = 1, most: int | None = None, /, **sizes: object) -> None:
    """Raise a ValueError for a size outside least..most; the keywords are the names of the caller's arguments."""
    for name, size in sizes.items():
        if not isinstance(size, Integral) or isinstance(size, bool) or size < least:
            raise ValueError(f"{name} must be a whole number of at least {least}, got {size!r}")
        if most is not None and int(size) > most:
            raise ValueError(f"{name} must be at most {most}, got {size}")


def check_flags(**flags: object) -> None:
    """Raise a ValueError for what is neither True nor False; the keywords are the names of the caller's arguments."""
    for name, flag in flags.items():
        if not isinstance(flag, bool):
            raise ValueError(f"{name} must be True or False, got {flag!r}")


def check_choice(name: str, value: object, known: Collection[str]) -> None:
    """Raise a ValueError for what is none of the known values."""
    if value not in known:
        raise ValueError(f"{name} must be one of {', '.join(known)}, got {value!r}")


def can_read(x: Tensor) -> bool:
    """Whether a check may read the numbers of x: on a GPU it would wait, and torch.compile cannot."""
    return x.device.type == "cpu" and not torch.compiler.is_compiling()


def check_range(name: str, x: Tensor, low: float, high: float = math.inf) -> None:
    """Raise a ValueError for a number of x outside low..high, but not for NaN; see can_read."""
    if x.numel() and can_read(x):
        least, most = map(float, x.detach().aminmax())
        if least < low or most > high:
            right = f"at least {low:g}" if high == math.inf else f"in {low:g}..{high:g}"
            raise ValueError(f"{name} must be {right}, got {least:g}..{most:g}")


def check_number(name: str, value: object, low: float, below: float = math.inf) -> None:
    """Raise a ValueError for what is no finite number from low to, and without, below."""
    number = math.nan
    if isinstance(value, Real) or (isinstance(value, Tensor) and value.dim() == 0):
        with suppress(OverflowError):  # a whole number of hundreds of digits
            number = float(value)
    if isinstance(value, bool) or not low <= number < below:
        right = f"in [{low:g}, {below:g})" if below < math.inf else f"a finite number of at least {low:g}"
        raise ValueError(f"{name} must be {right}, got {value!r}")


def check_mask(name: str, mask: object, shape: Sequence[int]) -> None:
    """Raise a ValueError for what is no mask that broadcasts to a shape, in which -1 is any size."""
    if torch.compiler.is_compiling():
        return
    sizes = mask.shape if isinstance(mask, Tensor) and mask.dtype == torch.bool else [*shape, 0]
    pairs = zip(reversed(sizes), reversed(shape), strict=False)
    if len(sizes) > len(shape) or any(size not in (1, right) and right >= 0 for size, right in pairs):
        is_now = f"{mask.dtype} {tuple(mask.shape)}" if isinstance(mask, Tensor) else type(mask).__name__
        raise ValueError(f"{name} must be bool and broadcast to {tuple(shape)}, got {is_now}")


def check_right_padding(valid: Tensor) -> None:
    """Refuse a mask (N, L) with padding before an item; see can_read."""
    if can_read(valid) and not bool((valid[:, 1:] <= valid[:, :-1]).all()):
        raise ValueError("valid has padding before an item: padding must be on the right")
