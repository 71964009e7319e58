"""The words of the published specification as parts of an OpenAPI document. All frameworks' schemas use these parts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ..engine.conf import Idempotency, get_settings
from . import specification

Schema = dict[str, Any]
PROBLEM_NAME = "IdempotencyProblem"
PROBLEM_TYPE = "application/problem+json"


def describe(
    operation: Schema,
    options: Idempotency,
    *,
    required: bool,
    status_type: type = str,
    undeclared: Mapping[int, Iterable[str]] | None = None,
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
    conf = get_settings()
    parameters: list[Schema] = operation.setdefault("parameters", [])
    declared = {parameter["name"].lower() for parameter in parameters if parameter.get("in") == "header"}
    if options.key is None and conf.header.lower() not in declared:
        parameters.append(_key(options, required))
    replayed = {
        "schema": {"type": "string", "enum": ["true", "false"]},
        "description": "Whether this is the kept answer of an earlier request. Missing: no key was honoured.",
    }
    responses: Schema = operation["responses"]
    for status, response in responses.items():
        if str(status).startswith("2"):
            response.setdefault("headers", {})[conf.replayed_header] = {**replayed, "required": required}
    for found in specification.documented_responses(options):
        status = status_type(found.status)
        if status not in responses and undeclared and found.status in undeclared:
            responses[status] = {"content": {media_type: {"schema": {}} for media_type in undeclared[found.status]}}
        response = responses.setdefault(status, {})
        text = f"{found.title} ({found.code}): {found.detail}"
        response["description"] = "\n".join(filter(None, [response.get("description"), text]))
        headers = response.setdefault("headers", {})
        headers.setdefault(conf.replayed_header, dict(replayed))
        if "Retry-After" in found.headers:
            wait = (
                "Seconds, after which to send the request again. With a lease, what is left of the lease, 60 at most."
            )
            headers.setdefault("Retry-After", {"schema": {"type": "integer", "minimum": 1}, "description": wait})
        media_type, form = PROBLEM_TYPE, {"$ref": f"#/components/schemas/{PROBLEM_NAME}"}
        if found.status == 202:
            # The body is the state of the first request, as on its status page.
            media_type, form = "application/json", {"type": "object"}
            headers.setdefault("Location", {"schema": {"type": "string", "format": "uri-reference"}})
        if found.status == 202 or conf.error_response is None:
            response.setdefault("content", {}).setdefault(media_type, {"schema": form})


def _key(options: Idempotency, required: bool) -> Schema:
    """The parameter that carries the key."""
    url = get_settings().docs_url
    facts = [
        specification.key_format(options),
        f"Kept for: {specification.lifetime(options)}.",
        f"Unique for: {specification.uniqueness(options)}.",
        f"Compared with the first request: {specification.comparison(options)}.",
        *([f"See also: {url}."] if url else []),
    ]
    return {
        "in": "header",
        "name": get_settings().header,
        "schema": {"type": "string", "pattern": specification.key_pattern()},
        "description": " ".join(facts),
        **({"required": True} if required else {}),
    }


def components() -> Schema:
    """What the responses refer to. New objects, because a project's hooks may change them."""
    if get_settings().error_response is not None:
        return {}
    members = {
        **{name: {"type": "string"} for name in ("code", "title", "detail")},
        **{name: {"type": "string", "format": "uri-reference"} for name in ("type", "instance")},
        "status": {"type": "integer"},
    }
    described = {"type": "object", "description": "RFC 9457 problem details."}
    resource = {"type": "object", "properties": {name: {"type": "string"} for name in ("type", "id")}}
    return {PROBLEM_NAME: {**described, "properties": {**members, "resource": resource}, "required": list(members)}}
