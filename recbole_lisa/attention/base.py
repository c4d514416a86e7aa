"""The interface of all attention mechanisms. Letters of shapes: N batch, L length, D width, U distinct items."""

from collections.abc import Callable, Mapping
from functools import cached_property
from inspect import signature
from types import NoneType
from typing import Any, NamedTuple, get_args

import numpy as np
import torch
from torch import Tensor, nn

from recbole_lisa.attention.codebook import Codebook
from recbole_lisa.ops.checks import check_operands, check_right_padding, check_sizes
from recbole_lisa.ops.quantize import Quantized


class CodedSequences(NamedTuple):
    """N sequences of items that are quantised already."""

    rows: Tensor  # (N, L) int64, rows of quantized
    quantized: Quantized  # the U distinct items
    vectors: Tensor | None = None  # (N, L, D), what the layer reads without codes, for an attention with needs_vectors


_CHECKED = {int, float, bool, str, Codebook, NoneType}
Input = Tensor | CodedSequences
"""What an attention reads: vectors (N, L, D), or codes where it has a quantizer."""


def final_positions(valid: Tensor) -> Tensor:
    """Index of each row's last item: valid (N, L) -> (N,) int64; 0 for a row of padding only."""
    return (valid.sum(dim=1) - 1).clamp_min(0)


def take_positions(x: Tensor, positions: Tensor) -> Tensor:
    """x[n, positions[n]]: x (N, L, D), positions (N,) -> (N, D)."""
    return x.gather(1, positions.view(-1, 1, 1).expand(-1, 1, x.shape[-1])).squeeze(1)


def empty_state(like: Tensor, n: int, *shape: int) -> Tensor:
    """Zeros (n, *shape) of the type of a parameter, at least float32: bfloat16 cannot count above 256."""
    check_sizes(0, n=n)
    return like.new_zeros(n, *shape, dtype=torch.promote_types(like.dtype, torch.float32))


def take_newest(x: Tensor, valid: Tensor, n: int) -> tuple[Tensor, Tensor]:
    """The last n items of each row, the newest last, (N, n, D), and where there is none, (N, n, 1) bool.

    x (N, L, D), valid (N, L), L at least 1. Where there is none, the vector is one of the row's.
    """
    ages = torch.arange(n - 1, -1, -1, device=x.device)
    positions = (final_positions(valid).unsqueeze(1) - ages).clamp_min(0)  # (N, n)
    newest = x.gather(1, positions.unsqueeze(2).expand(-1, -1, x.shape[2]))
    return newest, (ages >= valid.sum(dim=1, keepdim=True)).unsqueeze(2)


def take_non_padding(x: Tensor, valid: Tensor) -> Tensor:
    """x at the M non-padding positions, without a copy if there is no padding: (N, L, D), (N, L) -> (M, D)."""
    return x.flatten(0, 1) if bool(valid.all()) else x[valid]


def take_last(x: Tensor, valid: Tensor) -> Tensor:
    """x at each row's final item, 0 for a row of padding only: (N, L, D), (N, L) -> (N, D)."""
    return take_positions(x, final_positions(valid)).masked_fill(~valid.any(dim=1, keepdim=True), 0.0)


def zero_padding(x: Tensor, valid: Tensor) -> Tensor:
    """x (N, L, D) with 0 at padding, also where x is NaN there."""
    return x.masked_fill(~valid.unsqueeze(-1), 0.0)


def apply_layer(layer: nn.Module, x: Tensor) -> Tensor:
    """layer(x) with the type Tensor, which torch declares as Any."""
    out: Tensor = layer(x)
    return out


def project_exactly(layer: nn.Linear, x: Tensor) -> Tensor:
    """layer(x) in the type of its parameters, also under autocast: an argmax of it must not depend on rounding."""
    with torch.autocast(x.device.type, enabled=False):
        return apply_layer(layer, x.to(layer.weight.dtype))


def plain_keywords(mechanism: type[nn.Module], keywords: Mapping[str, Any]) -> dict[str, Any]:
    """The keywords of a constructor as plain values; a ValueError for one of another kind than its annotation."""
    parameters, plain = signature(mechanism.__init__).parameters, dict(keywords)
    for name, value in keywords.items():
        annotation = parameters[name].annotation if name in parameters else object
        kinds = get_args(annotation) or (annotation,)
        value = plain[name] = value.item() if isinstance(value, np.generic) else value
        huge = type(value) is int and abs(value) >= 2**63
        is_right = type(value) in kinds or (type(value) is int and float in kinds)
        if _CHECKED.issuperset(kinds) and (huge or not is_right):
            known = " or ".join(kind.__name__ for kind in kinds) + huge * " below 2^63"
            raise ValueError(f"{mechanism.__name__}: {name} must be {known}, got {value!r}")
    return plain


class Attention(nn.Module):
    """Self attention over right-padded sequences.

    The constructor of a mechanism takes keywords with simple values: hidden_size is D, n_heads is H. A mechanism
    implements everywhere() and, if the last position alone is cheaper, at_last(). forward() and last() check the input,
    and set padding to 0 in x and in the result:

    - x (N, L, D) and valid (N, L) bool in, (N, L, D) out, for any N and L from 0 up; the output at padding is 0;
    - x has the dtype of the parameters, or autocast is on;
    - the content of padding, even NaN, changes no other output, gradient or buffer; rows are independent;
    - if is_causal, position i attends to positions up to i only; unless sees_future, it depends on them only;
    - in eval mode the same input gives the same output.

    Attributes:
        hidden_size: D.
        longest: the longest sequence; None without a limit.
        is_causal: position i attends to positions up to i only.
        sees_future: the choice among earlier positions depends on later ones, as in some published forms.
        remedy: text for the user, how to avoid sees_future.
        compiles: False if loops depend on the data, so that torch.compile would compile again and again.
        has_state: init_state, state_of and step are there: a history of any length is a state of constant size.
        needs_time_gaps: forward needs the time between items.
        needs_vectors: codes must come with the residual stream.
        quantizer: the codebooks that quantise vectors, or None. With codebooks, forward takes codes as well.
        sum_over_processes: returns the sum of a tensor over all training processes; the training code sets it. Every
            process must call it the same number of times in a batch.

    Raises:
        ValueError: in every mechanism, a size below 1, n_heads that do not divide the width, or an unknown causality.
    """

    longest: int | None = None
    is_causal: bool = True
    sees_future: bool = False
    remedy: str = "causality 'strict' chooses from the past only"
    compiles: bool = True
    has_state: bool = False
    needs_time_gaps: bool = False
    needs_vectors: bool = False
    sum_over_processes: Callable[[Tensor], Tensor] = staticmethod(lambda x: x)  # one process
    output: nn.Linear
    _keywords: dict[str, Any]

    def __new__(cls, *_: Any, **keywords: Any) -> "Attention":
        """Check the kinds of the constructor's keywords, and keep them for settings()."""
        module = super().__new__(cls)
        object.__setattr__(module, "_keywords", plain_keywords(cls, keywords))
        return module

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        check_sizes(hidden_size=hidden_size)
        if type(self).everywhere is Attention.everywhere and type(self).forward is Attention.forward:
            raise TypeError(f"{type(self).__name__} must define everywhere(x, valid): (N, L, D) -> (N, L, D)")
        self.hidden_size = hidden_size

    @property
    def quantizer(self) -> Codebook | None:
        """The codebooks that quantise the input, or None."""
        return None

    def settings(self) -> dict[str, Any]:
        """The keywords that build a module of the same shape, as plain values."""
        return dict(self._keywords)

    def frozen(self) -> "Attention":
        """A module for inference only, which has computed once what depends on the parameters alone."""
        return self

    def forward(self, x: Input, valid: Tensor, time_gaps: Tensor | None = None) -> Tensor:
        """Attend at every position: x (N, L, D), or codes where there is a quantizer -> (N, L, D), 0 at padding.

        valid (N, L) bool is True at items, with padding on the right; time_gaps (N, L) is the time since the previous
        item, where needs_time_gaps.

        Raises:
            ValueError: on another shape or dtype.
        """
        vectors = self.checked_vectors(x, valid)
        if not valid.numel():
            return vectors
        return zero_padding(self._everywhere(zero_padding(vectors, valid), valid), valid)

    def non_padding(self, x: Input, valid: Tensor, time_gaps: Tensor | None = None) -> Tensor:
        """As forward, at the M non-padding positions only, row after row: (M, D)."""
        return take_non_padding(self(x, valid, time_gaps), valid)

    def last(self, x: Input, valid: Tensor, time_gaps: Tensor | None = None) -> Tensor:
        """As forward, at each row's final item only: (N, D), 0 for a row of padding."""
        vectors = self.checked_vectors(x, valid)
        if not valid.numel():
            return vectors.new_zeros(len(valid), self.hidden_size)
        return self.at_last(zero_padding(vectors, valid), valid).masked_fill(~valid.any(dim=1, keepdim=True), 0.0)

    def _everywhere(self, x: Tensor, valid: Tensor) -> Tensor:
        out = self.everywhere(x, valid)
        check_operands(f"x: floating-point N L D; {type(self).__name__}.everywhere(): floating-point N L D", x, out)
        return out

    def everywhere(self, x: Tensor, valid: Tensor) -> Tensor:
        """As forward; x is 0 at padding, N and L are at least 1, and the result at padding is ignored."""
        raise NotImplementedError(f"{type(self).__name__} must define everywhere(x, valid)")

    def at_last(self, x: Tensor, valid: Tensor) -> Tensor:
        """As last; x is 0 at padding, N and L are at least 1, and the result of a row of padding is ignored."""
        return take_positions(self._everywhere(x, valid), final_positions(valid))

    def init_state(self, n: int) -> Any:
        """The empty history of n users: a NamedTuple of tensors; only where has_state."""
        raise NotImplementedError

    def state_of(self, x: Input, valid: Tensor, time_gaps: Tensor | None = None) -> Any:
        """The state after whole sequences, in float64, since it sums over any length; arguments as in forward."""
        raise NotImplementedError

    def step(
        self, state: Any, x: Tensor | Quantized, time_gap: Tensor | None = None, vectors: Tensor | None = None
    ) -> tuple[Tensor, Any]:
        """Append one item to the history of each of N users; the cost does not depend on the position.

        x are the new vectors (N, D), or their codes where there is a quantizer: then `vectors` (N, D) is the residual
        stream, where needs_vectors. time_gap is (N,), where needs_time_gaps. Returns the output at the new position
        (N, D), and the new state.
        """
        raise NotImplementedError

    def project(self, attended: Tensor) -> Tensor:
        """The output projection, where there is one."""
        return apply_layer(self.output, attended)

    @staticmethod
    def is_published(causality: str) -> bool:
        """Whether causality is 'published'; raises ValueError if it is not 'strict' either."""
        if causality not in ("strict", "published"):
            raise ValueError(f"causality must be 'strict' or 'published', got {causality!r}")
        return causality == "published"

    def check_step(self, state: Any, x: Any, *kinds: type[Any]) -> None:
        """Refuse operands of step that are swapped or of another kind; x is one of kinds."""
        shape = tuple(x.shape) if isinstance(x, Tensor) else ()
        kind, forms, of_one = self._state_form
        if type(state) is not kind or not isinstance(x, kinds) or (shape and shape[1:] != (self.hidden_size,)):
            given = f"{type(state).__name__} and {type(x).__name__} {shape}"
            raise ValueError(f"step takes a state, then x (N, {self.hidden_size}), got {given}")
        n = shape[0] if shape else len(x.codes)
        sizes = of_one if n == 1 else [tuple(n if size is None else size for size in form) for form in forms]
        for name, part, form, right_size in zip(kind._fields, state, forms, sizes, strict=True):
            if part.shape != right_size:
                right = f"{name} must be {tuple('N' if size is None else size for size in form)}"
                raise ValueError(f"x has {n} rows, the state is of other users: {tuple(part.shape)}; {right}")
        parameter = next(self.parameters(), None) if shape else None
        if parameter is not None and x.dtype != parameter.dtype and not torch.is_autocast_enabled(x.device.type):
            raise ValueError(f"x is {x.dtype}, but the parameters are {parameter.dtype}: convert one of them")

    @cached_property
    def _state_form(self) -> tuple[Any, list[tuple[int | None, ...]], list[tuple[int, ...]]]:
        """The class of a state, of each part the sizes, None where it is the number of users, and those of one user."""
        none, one = self.init_state(0), self.init_state(1)
        pairs = ((a.shape, b.shape) for a, b in zip(none, one, strict=True))
        forms = [tuple(x if x == y else None for x, y in zip(*pair, strict=True)) for pair in pairs]
        return type(none), forms, [tuple(part.shape) for part in one]

    def checked_vectors(self, x: Input, valid: Tensor) -> Tensor:
        """Return x after check_input; raise ValueError for codes."""
        if not isinstance(x, Tensor):
            kind = "codes" if isinstance(x, CodedSequences) else type(x).__name__
            raise ValueError(f"{type(self).__name__} attends to vectors (N, L, {self.hidden_size}), got {kind}")
        self.check_input(x, valid)
        return x

    def check_input(self, x: Input, valid: Tensor) -> None:
        """Raise ValueError for an input of another shape or dtype."""
        if not isinstance(x, Tensor | CodedSequences) or not isinstance(valid, Tensor):
            raise ValueError(f"x and valid must be tensors, got {type(x).__name__} and {type(valid).__name__}")
        shape = x.shape if isinstance(x, Tensor) else (*x.rows.shape, self.hidden_size)
        if len(shape) != 3 or shape[2] != self.hidden_size:
            raise ValueError(f"x must be (N, L, {self.hidden_size}), got {tuple(shape)}")
        if valid.dtype != torch.bool or valid.shape != shape[:2]:
            raise ValueError(f"valid must be bool {tuple(shape[:2])}, got {valid.dtype} {tuple(valid.shape)}")
        check_right_padding(valid)
        parameter = next(self.parameters(), None)
        if isinstance(x, Tensor):
            check_operands("x: floating-point N L D; valid: bool N L", x, valid)
            if parameter is not None and x.device != parameter.device:
                raise ValueError(f"x is on {x.device}, but the parameters are on {parameter.device}: move one of them")
        if self.longest is not None and shape[1] > self.longest:
            built = f"{type(self).__name__} was built for {self.longest} positions"
            raise ValueError(f"{built}, got a sequence of {shape[1]}")
        dtype = None if parameter is None else parameter.dtype
        if isinstance(x, Tensor) and x.dtype != (dtype or x.dtype) and not torch.is_autocast_enabled(x.device.type):
            raise ValueError(f"x is {x.dtype}, but the parameters are {dtype}: convert one of them, or use autocast")
