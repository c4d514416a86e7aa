"""The short way of a POST whose JSON body is right; all other requests go to FastAPI, which words the refusals."""

import json
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from recbole_lisa.errors import UsageError
from recbole_lisa.serving.http.bodies import SESSION_ID, Body
from recbole_lisa.serving.http.refusals import RefusalError, answer_error

Endpoints = Mapping[str, tuple[Callable[..., Awaitable[Response]], type[Body]]]
_SESSION = re.compile(rf"/sessions/({SESSION_ID.strip('^$')})(/items|/recommend)")
_JSON = re.compile(r"application/([^/]*\+)?json")


class Direct:
    """An ASGI application before another one; `endpoints` are the function and the body of POST at each path.

    A right body gets the answer that `app` gives, without the cost of FastAPI's routes and dependencies.
    """

    def __init__(self, app: ASGIApp, endpoints: Endpoints) -> None:
        self.app, self.endpoints = app, endpoints

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        path, arguments = scope.get("path", ""), {}
        if in_session := _SESSION.fullmatch(path):
            path, arguments = f"/sessions/{{session}}{in_session[2]}", {"session": in_session[1]}
        if scope.get("method") != "POST" or path not in self.endpoints or not _has_json(scope):
            await self.app(scope, receive, send)
            return
        scope["endpoint"], model = self.endpoints[path]
        messages: list[Any] = []
        try:
            body = await _read(model, receive, messages)
            response = await scope["endpoint"](**arguments, body=body) if body else None
        except (HTTPException, UsageError) as error:
            response = await answer_error(None, error)
        if response is not None:
            await response(scope, receive, send)
            return
        read = iter(messages)

        async def receive_again() -> Any:
            return next(read, None) or await receive()

        await self.app(scope, receive_again, send)


def _has_json(scope: Scope) -> bool:
    kind = next((value for name, value in scope["headers"] if name == b"content-type"), b"")
    return bool(_JSON.fullmatch(kind.decode("latin-1").partition(";")[0].strip().lower()))


async def _read(model: type[Body], receive: Receive, messages: list[Any]) -> Body | None:
    """Read a body; None where it is wrong. `messages` gets all that was received."""
    while not messages or messages[-1].get("more_body"):
        messages.append(await receive())
    content = b"".join(message.get("body", b"") for message in messages)
    try:
        return model.model_validate(_DECODER.decode(content.decode(json.detect_encoding(content), "surrogatepass")))
    except (ValueError, RecursionError):  # pydantic's error is a ValueError
        return None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object, whose names differ."""
    fields = dict(pairs)
    if len(fields) < len(pairs):
        [(name, _)] = Counter(name for name, _ in pairs).most_common(1)
        raise RefusalError(422, "invalid", f"the body has the field {name[:50]!r} twice: give it once")
    return fields


_DECODER = json.JSONDecoder(object_pairs_hook=_object)
