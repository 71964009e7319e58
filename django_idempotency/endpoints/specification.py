"""What a client needs to know about a protected endpoint, in English and in OpenAPI.

The IETF draft on `Idempotency-Key` lists these points (sections 2.2, 2.3 and 2.5.2): whether a key is required, its
format, when it expires, whether two callers can use the same key, and how a retry is compared with the first request.
The `idempotency_endpoints` command prints the same text that the OpenAPI schemas contain.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from django.utils.translation import override

from ..engine.conf import Options, get_settings
from ..engine.declare.wrappers import dotted_name
from ..engine.protocol.key_syntax import is_uuid
from ..engine.protocol.outcomes import Snapshot
from ..engine.request import problems
from ..engine.request.fingerprints import MAX_PARSED_BYTES
from ..engine.request.problems import Problem

Schema = dict[str, Any]
PROBLEM_NAME = "IdempotencyProblem"
PROBLEM_TYPE = "application/problem+json"
_BODY = f"body (JSON and forms up to {MAX_PARSED_BYTES // 1024} KiB by their values)"
_UNITS = {"day": 86400, "hour": 3600, "minute": 60, "second": 1}


def facts(options: Options) -> dict[str, str]:
    """Return the facts that a client needs to know, as a dict that maps each fact's name to its description."""
    promise = options.runner.promise()
    return {
        **({"Promise": promise} if promise else {}),
        "Key": key_format(options),
        "Unique for": uniqueness(options),
        "Compared with the first request": comparison(options),
        "Kept for": f"{lifetime(options)} from the first request. After that the key is as if it had never been used.",
    }


def key_format(options: Options) -> str:
    """Return the format of a key or, if the `key` option is set, the place that the key is read from."""
    if options.key is not None:
        with override(None):
            return str(getattr(options.key, "source", f"read by {dotted_name(options.key)}"))
    conf = get_settings()
    text = "1 to 255 visible ASCII characters, unique for each operation, such as a UUID"
    if conf.key_validator is is_uuid:
        text = "A UUID"
    text += '. In double quotes (a string of RFC 9651), or bare if it has no " , ; ( ) and begins with no : ? @.'
    if conf.key_validator not in (None, is_uuid):
        text += " The server requires a format of its own beyond that."
    return text


def lifetime(options: Options) -> str:
    """Return a key's lifetime in the largest whole unit: "1 day", but "36 hours"."""
    seconds = options.ttl_seconds
    unit = next((unit for unit, length in _UNITS.items() if seconds % length == 0), "second")
    count = seconds / _UNITS[unit]
    return f"{count:.10g} {unit}{'' if count == 1 else 's'}"


def uniqueness(options: Options) -> str:
    """Return a description of how the server tells callers apart. Different callers can use the same key."""
    if options.scope is not None:
        return f"the caller, as {dotted_name(options.scope)} returns it"
    others = "; others are refused" if options.anonymous == "refuse" else ", else all anonymous callers"
    return f"the authenticated user, else the credential or session that was sent{others}"


def comparison(options: Options) -> str:
    """Return a description of the parts of a retry that are compared with the first request."""
    chosen = options.fingerprint
    target = "path" if options.operation is None else "arguments of the URL"
    if chosen is None:
        return f"method and {target}"
    if callable(chosen):
        return f"method, {target}, query string and what {dotted_name(chosen)} returns"
    body = f"the body fields {', '.join(chosen)}" if isinstance(chosen, tuple) else _BODY
    return f"method, {target}, query string, content type and {body}"


def documented_responses(options: Options) -> list[Problem]:
    """Return all responses that the package itself can send to a client of this endpoint, sorted by status."""
    snapshot = Snapshot(status_code=200, headers=(), body=None)
    still = "The first request with this key is still being processed. Location is its status page."
    # The real `detail` also names the status of the response that was not stored. This text is more general.
    no_response = "The request was processed, but its response was not kept. It is not run again."
    with override(None):
        outstanding = problems.outstanding(options)
        possible = [
            (options.required, problems.missing_key(options)),
            (True, problems.invalid_key(options, "")),
            (options.scope is None and options.anonymous == "refuse", problems.anonymous_refused()),
            (options.may_replay is not None, problems.replay_refused()),
            (True, replace(outstanding, title="Accepted", detail=still) if outstanding.status == 202 else outstanding),
            (options.policy in ("retry-keyed", "hold"), problems.outcome_unknown()),
            (options.late_keys == "refuse", problems.key_too_old()),
            (True, problems.already_used(options)),
            (True, replace(problems.response_not_stored(snapshot), detail=no_response)),
            (True, problems.store_busy()),
            (bool(get_settings().paused), problems.paused()),
        ]
    documented = [replace(problem, detail=problem.detail.strip()) for applies, problem in possible if applies]
    return sorted(documented, key=lambda problem: problem.status)


# --- OpenAPI


def describe(
    operation: Schema,
    options: Options,
    *,
    required: bool,
    status_type: type = str,
    undeclared: Mapping[int, Iterable[str]] | None = None,
) -> None:
    """Add the key's header, the replay header and the package's own responses to one operation of an OpenAPI schema.

    `operation` is changed in place. Headers that the project has declared are left as they are. Responses that it
    has declared are kept and extended.

    Args:
        operation: an Operation Object of OpenAPI.
        options: the resolved options of the endpoint.
        required: whether a request without a key is always refused.
        status_type: the type of the statuses in `operation["responses"]`.
        undeclared: the statuses of responses that the framework makes without declaring a schema, with their media
            types.
    """
    conf = get_settings()
    parameters: list[Schema] = operation.setdefault("parameters", [])
    declared = {parameter["name"].lower() for parameter in parameters if parameter.get("in") == "header"}
    if options.key is None and conf.header.lower() not in declared:
        parameters.append(_key(options, required))
    replayed = {
        "schema": {"type": "string", "enum": ["true", "false"]},
        "description": "Whether this is the stored response of an earlier request. Missing if no key was honoured.",
    }
    responses: Schema = operation["responses"]
    for status, response in responses.items():
        if str(status).startswith("2"):
            response.setdefault("headers", {})[conf.replayed_header] = {**replayed, "required": required}
    for problem in documented_responses(options):
        status = status_type(problem.status)
        if status not in responses and undeclared and problem.status in undeclared:
            responses[status] = {"content": {media_type: {"schema": {}} for media_type in undeclared[problem.status]}}
        response = responses.setdefault(status, {})
        text = f"{problem.title} ({problem.code}): {problem.detail}"
        response["description"] = "\n".join(filter(None, [response.get("description"), text]))
        headers = response.setdefault("headers", {})
        headers.setdefault(conf.replayed_header, dict(replayed))
        if "Retry-After" in problem.headers:
            wait = "Seconds to wait before sending it again: with a lease, up to the rest of it, at most 60."
            headers.setdefault("Retry-After", {"schema": {"type": "integer", "minimum": 1}, "description": wait})
        media_type, form = PROBLEM_TYPE, {"$ref": f"#/components/schemas/{PROBLEM_NAME}"}
        if problem.status == 202:
            # This is not an error, so the body is not a problem document but JSON with the running request's state.
            media_type, form = "application/json", {"type": "object"}
            headers.setdefault("Location", {"schema": {"type": "string", "format": "uri-reference"}})
        if problem.status == 202 or conf.error_response is None:
            response.setdefault("content", {}).setdefault(media_type, {"schema": form})


def _key(options: Options, required: bool) -> Schema:
    """Return the OpenAPI parameter for the request header that contains the key."""
    conf = get_settings()
    described = [f"{name}: {text}" for name, text in facts(options).items()]
    described += [f"See also: {conf.docs_url}"] if conf.docs_url else []
    return {
        "in": "header",
        "name": conf.header,
        "schema": {"type": "string"},
        "description": "\n".join(f"- {text}" for text in described),
        **({"required": True} if required else {}),
    }


def components() -> Schema:
    """Return new copies of the schemas for the package's responses, because a project's hook may change them."""
    if get_settings().error_response is not None:
        return {}
    members: Schema = {name: {"type": "string"} for name in ("type", "title", "detail", "instance", "code")}
    members["status"] = {"type": "integer"}
    members["meaning"] = {"type": "string", "enum": [str(meaning) for meaning in problems.Meaning]}
    described = {"type": "object", "description": "RFC 9457 problem details."}
    resource = {"type": "object", "properties": {name: {"type": "string"} for name in ("type", "id")}}
    return {PROBLEM_NAME: {**described, "properties": {**members, "resource": resource}, "required": list(members)}}
