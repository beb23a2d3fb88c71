"""The OpenAPI document of the API, made from the table of routes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec

from cluster.console.routes import Change, Route

PREFIX = "/api/v1"
_REFERENCE = "#/components/schemas/{name}"


def document(routes: Sequence[Route]) -> dict[str, Any]:
    """Return the OpenAPI 3.1 document of `routes`."""
    types = [Change, *(route.parameters for route in routes), *(route.result for route in routes)]
    schemas, components = msgspec.json.schema_components(types, ref_template=_REFERENCE)
    results = dict(zip(map(id, routes), schemas[1 + len(routes) :], strict=True))
    paths: dict[str, Any] = {}
    for route in routes:
        paths.setdefault(f"{PREFIX}{route.path}", {})[route.method.lower()] = _operation(
            route, results[id(route)], components
        )
    return {
        "openapi": "3.1.0",
        "info": {"title": "RayMQ console", "version": "1"},
        "paths": paths,
        "components": {"schemas": components},
    }


def _operation(route: Route, result: Any, components: dict[str, Any]) -> dict[str, Any]:
    own = components[route.parameters.__name__]
    in_path = re.findall(r"{(\w+)}", route.path)
    in_body = route.method == "POST"
    required = own.get("required", ())
    operation: dict[str, Any] = {
        "summary": route.summary,
        "parameters": [
            {
                "name": name,
                "in": "path" if name in in_path else "query",
                "required": name in in_path or name in required,
                "schema": schema,
            }
            for name, schema in own["properties"].items()
            if name in in_path or not in_body
        ],
        "responses": {
            "200": {
                "description": "The result, and the command line that does the same.",
                "content": {"application/json": {"schema": _enveloped(result)}},
            },
            "default": {
                "description": "An error: a sentence with its cause, and a remedy.",
                "content": {"application/json": {"schema": _ERROR}},
            },
        },
    }
    if in_body:
        fields = {name: schema for name, schema in own["properties"].items() if name not in in_path}
        schema = {
            "type": "object",
            "properties": fields,
            "required": [name for name in required if name in fields],
            "additionalProperties": False,
        }
        operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": schema}}}
    return operation


def _enveloped(result: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {"data": result, "command": {"type": "string"}},
        "required": ["data", "command"],
    }


_ERROR = {
    "type": "object",
    "properties": {"error": {"type": "string"}, "remedy": {"type": "string"}},
    "required": ["error", "remedy"],
}
