"""The HTTP API as Markdown, from the OpenAPI description of the service itself."""

import json
from types import SimpleNamespace
from typing import Any

from recbole_lisa.serving.http.app import Service, build_app
from recbole_lisa.serving.http.bodies import Limits
from recbole_lisa.serving.http.middleware import Metrics
from recbole_lisa.serving.http.stores import MemoryStore

Schema = dict[str, Any]


def describe_api() -> str:
    """One section for each path and method: what it does, its parameters, the fields of its body."""
    without_model: Any = SimpleNamespace(bundle=SimpleNamespace(titles={}))
    service = Service(without_model, MemoryStore(1, 1.0), Metrics(), Limits())
    openapi = build_app(service).openapi()
    service.model.close()
    bodies = openapi["components"]["schemas"]
    parts = []
    for path, methods in openapi["paths"].items():
        for method, operation in methods.items():
            parts.append(f"### {method.upper()} {path}\n\n{operation['description']}\n")
            rows = [_row(one["name"], one["schema"], one["required"]) for one in operation.get("parameters", [])]
            if "requestBody" in operation:
                name = operation["requestBody"]["content"]["application/json"]["schema"]["$ref"].rpartition("/")[2]
                body, required = bodies[name], bodies[name].get("required", [])
                rows += [_row(field, schema, field in required) for field, schema in body["properties"].items()]
            if rows:
                parts.append("\n".join(["| field | type | default |", "|---|---|---|", *rows]) + "\n")
    return "\n".join(parts)


def _row(name: str, schema: Schema, required: bool) -> str:
    default = "required" if required else "-" if schema.get("default") is None else f"`{json.dumps(schema['default'])}`"
    return f"| `{name}` | {_type(schema)} | {default} |"


def _type(schema: Schema) -> str:
    """A JSON type in words, such as `list of (text or whole number)`."""
    options = schema.get("anyOf") or schema.get("oneOf")
    if options:
        return " or ".join(dict.fromkeys(_type(one) for one in options if one.get("type") != "null"))
    if "enum" in schema:
        return " or ".join(f"`{value}`" for value in schema["enum"])
    if schema["type"] == "array":
        inner = _type(schema["items"])
        return f"list of ({inner})" if " or " in inner else f"list of {inner}"
    names = {"string": "text", "integer": "whole number", "number": "number", "boolean": "true or false"}
    return names[schema["type"]] + _limits(schema)


def _limits(schema: Schema) -> str:
    low, high = schema.get("minimum"), schema.get("maximum")
    if low is not None and high is not None:
        return f" from {low:g} to {high:g}"
    if low is not None:
        return f" of at least {low:g}"
    if "pattern" in schema:
        return f" like `{schema['pattern']}`"
    return f" of at most {schema['maxLength']} characters" if "maxLength" in schema else ""
