"""The OpenAPI document of the API, made from the table of routes."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, get_args, get_origin

import msgspec

from cluster.console.routes import ListPart, Route

PREFIX = "/api/v1"
_REFERENCE = "#/components/schemas/{name}"
_TEXT = {"type": "string"}


def document(routes: Sequence[Route]) -> dict[str, Any]:
    """Return the OpenAPI 3.1 document of `routes`."""
    results = [list[get_args(each.result)] if _is_part(each) else each.result for each in routes]  # type: ignore[misc]
    types = [*(route.parameters for route in routes), *results]
    schemas, components = msgspec.json.schema_components(types, ref_template=_REFERENCE)
    paths: dict[str, Any] = {}
    for route, result in zip(routes, schemas[len(routes) :], strict=True):
        operation = _operation(route, components[route.parameters.__name__], result)
        paths.setdefault(f"{PREFIX}{route.path}", {})[route.method.lower()] = operation
    return {
        "openapi": "3.1.0",
        "info": {"title": "RayMQ console", "version": "1"},
        "paths": paths,
        "components": {"schemas": components},
    }


def _operation(route: Route, parameters: Mapping[str, Any], result: Any) -> dict[str, Any]:
    fields: Mapping[str, Any] = parameters["properties"]
    in_path = re.findall(r"{(\w+)}", route.path)
    required = {*parameters.get("required", ()), *in_path}
    in_body = {name: fields[name] for name in fields if route.method == "POST" and name not in in_path}
    more = {"total": {"type": "integer"}, "next": {"type": ["string", "null"]}} if _is_part(route) else {}
    done = _object({"data": result, "command": _TEXT} | more, ("data", "command", *more))
    refused = _object({"error": _TEXT, "remedy": _TEXT}, ("error", "remedy"))
    operation: dict[str, Any] = {
        "summary": route.summary,
        "parameters": [
            {"name": name, "in": "path" if name in in_path else "query", "schema": schema}
            | {"required": name in required}
            for name, schema in fields.items()
            if name not in in_body
        ],
        "responses": {
            "200": {"description": "The result, and the command line that does the same."} | _json(done),
            "default": {"description": "An error: a sentence with its cause, and a remedy."} | _json(refused),
        },
    }
    if in_body:
        body = _object(in_body, [name for name in in_body if name in required])
        operation["requestBody"] = {"required": True} | _json(body | {"additionalProperties": False})
    return operation


def _is_part(route: Route) -> bool:
    return get_origin(route.result) is ListPart


def _object(properties: Mapping[str, Any], required: Sequence[str]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": required}


def _json(schema: Mapping[str, Any]) -> dict[str, Any]:
    return {"content": {"application/json": {"schema": schema}}}
