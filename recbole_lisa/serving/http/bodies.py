"""The JSON bodies of requests as pydantic models, and the limits on them. A field that is null counts as not given."""

from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Discriminator, Field, StrictBool, StrictInt, Tag, model_validator
from pydantic_core import PydanticCustomError

from recbole_lisa.errors import UsageError, did_you_mean

SESSION_ID = "^[A-Za-z0-9_-]{1,64}$"
MAX_SECONDS = 1e12  # on either side of 0: differences of such times stay finite in float32

Entry = TypeVar("Entry")
FailFast = Annotated[list[Entry], Field(fail_fast=True)]
Ids = FailFast[Annotated[str, Field(strict=True, max_length=1000)] | StrictInt]
Seconds = Annotated[float, Field(strict=True, ge=-MAX_SECONDS, le=MAX_SECONDS, allow_inf_nan=False)]
Times = FailFast[Seconds]
_ForAll = Annotated[Ids, Tag("all")]
_ForEach = Annotated[FailFast[Ids], Tag("each")]


@dataclass(frozen=True)
class Limits:
    """The most that one request, and all waiting requests, may take."""

    body_bytes: int = 2**20
    histories: int = 256  # histories in one request
    items: int = 10_000  # items in one list
    updates: int = 100  # items that one request adds to a session; each is a step of the model
    k: int = 1000  # recommendations for one history
    waiting: int = 256  # requests that wait for the model or run on it; more get status 503
    batch: int = 32  # requests for recommendations that the model answers together
    batch_wait_ms: float = 2.0  # longest wait of a batch for requests in flight that may join it
    read_seconds: float = 30.0  # until the whole body of a request has arrived


def _form(value: Any) -> str:
    return "each" if isinstance(value, list) and any(isinstance(one, list) for one in value) else "all"


def _name_nulls(schema: dict[str, Any]) -> None:
    """Say in the schema of a body that null is a value of each field that need not be given."""
    for name in schema["properties"].keys() - {*schema.get("required", ())}:
        field = schema["properties"][name]
        if {"type": "null"} not in field.get("anyOf", ()):
            kept = {key: field.pop(key) for key in ("title", "default") if key in field}
            schema["properties"][name] = {"anyOf": [field, {"type": "null"}], **kept}


class Body(BaseModel):
    """A JSON object with known fields only."""

    model_config = ConfigDict(json_schema_extra=_name_nulls)

    on_unknown: Literal["raise", "warn", "skip"] = "raise"

    @property
    def policy(self) -> str:
        """What the model does with unknown items: a warning is part of the answer, not of the log."""
        return "raise" if self.on_unknown == "raise" else "skip"

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
        """Compare the sizes of all lists with the limits; a UsageError where one is too long."""
        for name, value in self:
            if isinstance(value, list):
                nested = name == "histories" or _form(value) == "each"
                most = limits.histories if nested else limits.updates if name == "items" else limits.items
                sizes = [(name, len(value), most)]
                sizes += [(f"{name}[{n}]", len(one), limits.items) for n, one in enumerate(value if nested else ())]
                for place, size, allowed in sizes:
                    if size > allowed:
                        raise UsageError(f"'{place}' holds {size} entries; at most {allowed} are allowed")


class Ranking(Body):
    """How to rank."""

    k: Annotated[int, Field(strict=True, ge=1)] = 10
    filter_seen: StrictBool = True
    at: Seconds | None = None

    @property
    def options(self) -> dict[str, Any]:
        """The arguments of `recommend` besides the histories."""
        return {name: value for name, value in self if name != "histories"} | {"on_unknown": self.policy}

    def check(self, limits: Limits) -> None:
        """As `Body.check`, for k too; the default of k is at most its limit."""
        super().check(limits)
        if "k" not in self.model_fields_set:
            self.k = min(self.k, limits.k)
        if self.k > limits.k:
            raise UsageError(f"'k' must be a whole number from 1 to {limits.k}, got {str(self.k)[:50]}")


class Recommend(Ranking):
    """POST /recommend; candidates are one list for all histories, or one for each."""

    histories: FailFast[Ids]
    times: FailFast[Times] | None = None
    candidates: Annotated[_ForAll | _ForEach, Discriminator(_form)] | None = None


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
