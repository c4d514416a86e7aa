"""The JSON bodies of requests as pydantic models, and the limits on them. A field that is null counts as not given."""

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Discriminator, Field, StrictBool, StrictInt, Tag, model_validator
from pydantic_core import PydanticCustomError

from recbole_lisa.errors import UsageError, did_you_mean

SESSION_ID = "^[A-Za-z0-9_-]{1,64}$"
MAX_SECONDS = 1e12
"""Largest time on either side of 0: differences of such times stay finite in float32."""

Ids = Annotated[list[Annotated[str, Field(strict=True, max_length=1000)] | StrictInt], Field(fail_fast=True)]
Seconds = Annotated[float, Field(strict=True, ge=-MAX_SECONDS, le=MAX_SECONDS, allow_inf_nan=False)]
Times = Annotated[list[Seconds], Field(fail_fast=True)]


@dataclass(frozen=True)
class Limits:
    """The most that one request, and all waiting requests, may take.

    Attributes:
        body_bytes: Bytes of a body.
        histories: Histories in one request.
        items: Items in one list.
        updates: Items that one request adds to a session; each is a step of the model.
        k: Recommendations for one history.
        waiting: Requests that wait for the model or run on it; more get status 503.
        read_seconds: Seconds until the whole body of a request has arrived.
    """

    body_bytes: int = 2**20
    histories: int = 256
    items: int = 10_000
    updates: int = 100
    k: int = 1000
    waiting: int = 256
    read_seconds: float = 30.0


def _is_nested(value: Any) -> bool:
    return isinstance(value, list) and any(isinstance(one, list) for one in value)


class Body(BaseModel):
    """A JSON object with known fields only."""

    on_unknown: Literal["raise", "warn", "skip"] = "raise"

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, fields: Any) -> Any:
        if not isinstance(fields, dict):
            return fields
        for name in fields:
            if name not in cls.model_fields:
                hint = f"known are {', '.join(cls.model_fields)}.{did_you_mean(name[:50], cls.model_fields)}"
                raise PydanticCustomError("hint", "{text}", {"text": f"unknown field {name[:50]!r}: {hint}"})
        return {name: value for name, value in fields.items() if value is not None}

    def check(self, limits: Limits) -> None:
        """Compare the sizes of all lists with the limits.

        Raises:
            UsageError: A list is too long.
        """
        for name, value in self:
            if isinstance(value, list):
                nested = name == "histories" or _is_nested(value)
                most = limits.histories if nested else limits.updates if name == "items" else limits.items
                _at_most(name, value, most)
                for n, one in enumerate(value if nested else ()):
                    _at_most(f"{name}[{n}]", one, limits.items)


class Ranking(Body):
    """How to rank."""

    k: Annotated[int, Field(strict=True, ge=1)] = 10
    filter_seen: StrictBool = True

    def check(self, limits: Limits) -> None:
        """As `Body.check`, for k too; the default of k is at most its limit."""
        super().check(limits)
        if "k" not in self.model_fields_set:
            self.k = min(self.k, limits.k)
        if self.k > limits.k:
            raise UsageError(f"'k' must be a whole number from 1 to {limits.k}, got {str(self.k)[:50]}")


class Recommend(Ranking):
    """POST /recommend; candidates are one list for all histories, or one for each."""

    histories: Annotated[list[Ids], Field(fail_fast=True)]
    times: Annotated[list[Times], Field(fail_fast=True)] | None = None
    candidates: (
        Annotated[
            Annotated[Ids, Tag("all")] | Annotated[list[Ids], Field(fail_fast=True), Tag("each")],
            Discriminator(lambda value: "each" if _is_nested(value) else "all"),
        ]
        | None
    ) = None


class RecommendSession(Ranking):
    """POST /sessions/ID/recommend."""

    candidates: Ids | None = None


class Start(Body):
    """POST /sessions; without an id the service chooses one."""

    id: Annotated[str, Field(strict=True, pattern=SESSION_ID)] | None = None
    history: Ids = []
    times: Times | None = None


class Update(Body):
    """POST /sessions/ID/items; expected_length makes a repeated request safe."""

    items: Ids
    times: Times | None = None
    expected_length: Annotated[int, Field(strict=True, ge=0)] | None = None


def _at_most(name: str, value: list[Any], most: int) -> None:
    if len(value) > most:
        raise UsageError(f"'{name}' holds {len(value)} entries; at most {most} are allowed")
