"""Errors as JSON: {"error": a fixed code for programs, "message": one line for people}."""

import json
from typing import Any

from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from recbole_lisa.errors import UsageError

_OF_FRAMEWORK = {
    400: ("not_json", "the body cannot be read as JSON"),
    404: ("no_such_path", "there is nothing at this path"),
    405: ("not_allowed", "this path does not take this method"),
}


class RefusalError(HTTPException):
    """A request that is refused, with a code that never changes; `close` ends a connection with an unread body."""

    def __init__(self, status: int, code: str, message: str, *, close: bool = False) -> None:
        again = {"retry-after": "1"} if status == 503 else {}
        super().__init__(status, message, again | ({"connection": "close"} if close else {}))
        self.code = code


def json_answer(value: Any, status: int = 200) -> Response:
    """JSON in ASCII: an id may hold half of a surrogate pair, which UTF-8 cannot encode."""
    return Response(json.dumps(value, allow_nan=False), status, media_type="application/json")


async def answer_error(_: Request | None, error: Exception) -> Response:
    """The answer to a request that raised an exception."""
    status, code, message = 500, "failed", "the service failed; its log says how"
    if isinstance(error, HTTPException):
        status, (code, message) = error.status_code, _OF_FRAMEWORK.get(error.status_code, (code, message))
    if isinstance(error, RefusalError):
        code, message = error.code, error.detail
    elif isinstance(error, UsageError):
        status, code, message = 422, "invalid", " ".join(str(error).split())
    elif isinstance(error, RequestValidationError):
        first = error.errors()[0]
        not_json = first["type"] == "json_invalid"
        status, code = (400, "not_json") if not_json else (422, "invalid")
        message = f"the body is not JSON: {first['ctx']['error']}" if not_json else describe(first)
    response = json_answer({"error": code, "message": message}, status)
    response.headers.update(getattr(error, "headers", None) or {})
    return response


def describe(error: dict[str, Any]) -> str:
    """One of pydantic's errors in a line: field, rule, value."""
    if error["type"] == "hint":
        return str(error["msg"])
    if len(error["loc"]) == 1:
        return "the body must be a JSON object, sent with the header Content-Type: application/json"
    name, *places = error["loc"][1:]
    field = str(name) + "".join(f"[{place}]" for place in places if isinstance(place, int))
    rule = error["msg"][:1].lower() + error["msg"][1:]
    value = error["input"]
    text = json.dumps(value) if isinstance(value, str | int | float | None) else type(value).__name__
    shown = text if len(text) <= 50 else f"{text[:47]}..."
    return f"'{field}': {rule}" + ("" if error["type"] == "missing" else f", got {shown}")
