"""OpenAPI by drf-spectacular: protected operations show the key's header, the replay header and the error answers.

# Note [Adding to every operation]
drf-spectacular has no extension point that adds to operations of whatever view without the project's doing. An
`OpenApiViewExtension` for APIView would be the only one that matches: it shuts out the project's own, and a schema
made by `@extend_schema` on a method does not inherit from what it returns. A post-processing hook gets the finished
document, whose paths four settings may have rewritten, is dropped by a project or a view that sets
POSTPROCESSING_HOOKS, and knows no view. What every schema class inherits, the project's own and those of
`@extend_schema` too, is `AutoSchema.get_operation`, and it knows view, method and registry. So that method is extended,
once, when Django starts; the maintainer's advice for such headers is an AutoSchema of one's own (issue #804).
What the project has declared itself, for the same header or status, stays.
"""

from __future__ import annotations

from collections.abc import Iterable
from copy import deepcopy
from functools import wraps
from itertools import groupby
from typing import Any

from django.utils.translation import gettext as _
from drf_spectacular.openapi import AutoSchema
from drf_spectacular.plumbing import ResolvedComponent

from ..endpoints import specification
from ..engine.conf import Idempotency, resolve, settings
from ..engine.request.problems import Problem
from .declared import handler_of

PROBLEM_TYPE = "application/problem+json"
PROBLEM = {
    "type": "object",
    "description": "RFC 9457 problem details.",
    "properties": {
        "type": {"type": "string", "format": "uri-reference"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
        "instance": {"type": "string", "format": "uri-reference"},
    },
    "required": ["type", "title", "status", "detail", "instance"],
}
Schema = dict[str, Any]


def install() -> None:
    """Let each operation that drf-spectacular describes pass through here. See Note [Adding to every operation]."""
    described = AutoSchema.get_operation
    if hasattr(described, "_idempotency_installed"):
        return

    @wraps(described)
    def get_operation(self: AutoSchema, *args: Any, **kwargs: Any) -> Schema | None:
        operation = described(self, *args, **kwargs)
        if operation is not None:
            _describe(self, operation)
        return operation

    vars(get_operation)["_idempotency_installed"] = True
    AutoSchema.get_operation = get_operation  # type: ignore[method-assign]


def _describe(schema: AutoSchema, operation: Schema) -> None:
    """Add to one operation in place, if it is protected."""
    view = schema.view
    handler = handler_of(type(view), vars(view), schema.method.lower(), getattr(view, "action", None))
    if handler.layers is None or not settings().enabled:
        return
    options = resolve(*handler.layers)
    if schema.method not in options.methods:
        return
    required = options.required and not handler.decides_by_request
    if options.key is None:
        _add_parameter(operation, options, required)
    responses: Schema = operation["responses"]
    for status, response in responses.items():
        if str(status).startswith("2"):
            _headers(response)[settings().replayed_header] = {**_replayed(), "required": required}
    for status, answers in groupby(specification.answers(options), key=lambda answer: answer.status):
        _add_answers(schema, responses, str(status), list(answers))


def _add_parameter(operation: Schema, options: Idempotency, required: bool) -> None:
    name = settings().header
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
    texts = {
        _("Kept for"): specification.lifetime(options),
        _("Unique for"): specification.uniqueness(options),
        _("Compared with the first request"): specification.comparison(options),
        **({_("See also"): url} if (url := settings().docs_url) else {}),
    }
    return " ".join([specification.key_format(options), *(f"{name}: {text}." for name, text in texts.items())])


def _add_answers(schema: AutoSchema, responses: Schema, status: str, answers: Iterable[specification.Answer]) -> None:
    """Our own answers with one status, beside what the view answers with it."""
    text = "\n".join(f"{answer.title}: {answer.meaning}" for answer in answers)
    if status in responses:
        response = responses[status]
        response["description"] = "\n".join(filter(None, [response.get("description"), text]))
    else:
        response = responses[status] = {"description": text}
        if status == "400":
            # What the framework answers to bad input has this status too, in a form that nobody has declared.
            response["content"] = {media_type: {"schema": {}} for media_type in schema.map_renderers("media_type")}
    if status == "202":
        # The state of the first request, as its status page tells it.
        response.setdefault("content", {}).setdefault("application/json", {"schema": {"type": "object"}})
        _headers(response).setdefault("Location", {"schema": {"type": "string", "format": "uri-reference"}})
    elif settings().error_response is None:
        response.setdefault("content", {}).setdefault(PROBLEM_TYPE, {"schema": _problem(schema)})
    headers = _headers(response)
    headers.setdefault(settings().replayed_header, _replayed())
    if any(answer.retry_after for answer in answers):
        headers.setdefault("Retry-After", {"schema": {"type": "integer", "minimum": 1}, "description": _("Seconds.")})


def _headers(response: Schema) -> Schema:
    headers: Schema = response.setdefault("headers", {})
    return headers


def _replayed() -> Schema:
    text = _("Whether this is the kept answer of an earlier request. Missing: no key was honoured.")
    return {"schema": {"type": "string", "enum": ["true", "false"]}, "description": text}


def _problem(schema: AutoSchema) -> Schema:
    # A copy, because post-processing hooks change what they get.
    component: Any = ResolvedComponent(  # type: ignore[no-untyped-call]
        name="IdempotencyProblem", type=ResolvedComponent.SCHEMA, schema=deepcopy(PROBLEM), object=Problem
    )
    schema.registry.register_on_missing(component)
    return dict(component.ref)
