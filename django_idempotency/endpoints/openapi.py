"""The words of the published specification as parts of an OpenAPI document. All frameworks' schemas use these parts."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from copy import deepcopy
from itertools import groupby
from typing import Any

from ..engine.conf import Idempotency, get_settings
from . import specification
from .specification import DocumentedResponse

Schema = dict[str, Any]
PROBLEM_NAME = "IdempotencyProblem"
PROBLEM_TYPE = "application/problem+json"
_MEMBERS = {
    "type": {"type": "string", "format": "uri-reference"},
    "code": {"type": "string"},
    "title": {"type": "string"},
    "status": {"type": "integer"},
    "detail": {"type": "string"},
    "instance": {"type": "string", "format": "uri-reference"},
}
PROBLEM = {
    "type": "object",
    "description": "RFC 9457 problem details.",
    "properties": _MEMBERS,
    "required": list(_MEMBERS),
}
"""The component `PROBLEM_NAME`."""
PROBLEM_REF = {"$ref": f"#/components/schemas/{PROBLEM_NAME}"}
_VARIABLE = re.compile(r"<(?:(\w+):)?(\w+)>")
"""A variable in a path of `formats.path`, with its converter."""


def describe(
    operation: Schema,
    options: Idempotency,
    *,
    required: bool,
    status_type: type = str,
    undeclared: Mapping[str, Iterable[str]] | None = None,
) -> None:
    """Add the key's header, the replay header and the package's responses to one operation, in place.

    What the project has declared for the same header or status stays.

    Args:
        operation: an Operation Object of OpenAPI.
        options: resolved.
        required: whether a request without a key is always refused.
        status_type: of the statuses in `operation["responses"]`.
        undeclared: other statuses of the framework, with their media types. Their form is not declared.
    """
    if options.key is None:
        _add_parameter(operation, options, required)
    responses: Schema = operation["responses"]
    for status, response in responses.items():
        if str(status).startswith("2"):
            _headers(response)[get_settings().replayed_header] = {**_replayed(), "required": required}
    for number, documented in groupby(specification.documented_responses(options), key=lambda found: found.status):
        media_types = (undeclared or {}).get(str(number), ())
        _add_responses(responses, status_type(number), list(documented), media_types)


def components() -> Schema:
    """What the responses refer to. Copies, because a project's hooks may change them."""
    return {PROBLEM_NAME: deepcopy(PROBLEM)} if get_settings().error_response is None else {}


def document(operations: Iterable[tuple[str, str, Idempotency, bool]]) -> Schema:
    """An OpenAPI document of these operations: path as clients read it, method, options, whether a key is required."""
    paths: Schema = {}
    for path, method, options, required in operations:
        variables = [
            {"in": "path", "name": name, "required": True, "schema": {"type": _JSON_TYPES.get(converter, "string")}}
            for converter, name in _VARIABLE.findall(path)
        ]
        answer = {"description": "The answer of the view itself, of any final status."}
        operation: Schema = {"parameters": variables, "responses": {"2XX": answer}}
        describe(operation, options, required=required)
        paths.setdefault(_VARIABLE.sub(r"{\2}", path), {}).setdefault(method.lower(), operation)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Operations with idempotency keys", "version": "1"},
        "paths": paths,
        "components": {"schemas": components()},
    }


_JSON_TYPES = {"int": "integer"}


def _add_parameter(operation: Schema, options: Idempotency, required: bool) -> None:
    name = get_settings().header
    parameters: list[Schema] = operation.setdefault("parameters", [])
    if any(known.get("in") == "header" and known["name"].lower() == name.lower() for known in parameters):
        return
    parameters.append(
        {
            "in": "header",
            "name": name,
            "schema": {"type": "string", "pattern": specification.key_pattern()},
            "description": _parameter_text(options),
            **({"required": True} if required else {}),
        }
    )


def _parameter_text(options: Idempotency) -> str:
    url = get_settings().docs_url
    return (
        f"{specification.key_format(options)} Kept for: {specification.lifetime(options)}. "
        f"Unique for: {specification.uniqueness(options)}. "
        f"Compared with the first request: {specification.comparison(options)}." + (f" See also: {url}." if url else "")
    )


def _add_responses(
    responses: Schema, status: Any, documented: list[DocumentedResponse], media_types: Iterable[str]
) -> None:
    """The package's own responses with one status, beside the view's response with that status."""
    text = "\n".join(f"{found.title}{f' ({found.code})' * bool(found.code)}: {found.meaning}" for found in documented)
    if status in responses:
        response = responses[status]
        response["description"] = "\n".join(filter(None, [response.get("description"), text]))
    else:
        response = responses[status] = {"description": text}
        if media_types:
            response["content"] = {media_type: {"schema": {}} for media_type in media_types}
    if documented[0].status == 202:
        # The body is the state of the first request, as on its status page.
        response.setdefault("content", {}).setdefault("application/json", {"schema": {"type": "object"}})
        _headers(response).setdefault("Location", {"schema": {"type": "string", "format": "uri-reference"}})
    elif get_settings().error_response is None:
        response.setdefault("content", {}).setdefault(PROBLEM_TYPE, {"schema": dict(PROBLEM_REF)})
    headers = _headers(response)
    headers.setdefault(get_settings().replayed_header, _replayed())
    if any(found.retry_after for found in documented):
        text = "Seconds, after which to send the request again. With a lease, what is left of the lease, 60 at most."
        headers.setdefault("Retry-After", {"schema": {"type": "integer", "minimum": 1}, "description": text})


def _headers(response: Schema) -> Schema:
    headers: Schema = response.setdefault("headers", {})
    return headers


def _replayed() -> Schema:
    text = "Whether this is the kept answer of an earlier request. Missing: no key was honoured."
    return {"schema": {"type": "string", "enum": ["true", "false"]}, "description": text}
