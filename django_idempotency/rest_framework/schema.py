"""OpenAPI by drf-spectacular: protected operations show the key's header, the replay header and the error answers.

    REST_FRAMEWORK = {"DEFAULT_SCHEMA_CLASS": "django_idempotency.rest_framework.schema.AutoSchema"}

A project with a schema class of its own puts `IdempotencySchemaMixin` in front of the bases of that class. What the
project has declared itself, for the same header or status, stays.

Other extension points of drf-spectacular miss operations: `@extend_schema` on a method leaves out an
`OpenApiViewExtension`, and a post-processing hook knows no view. The maintainer recommends a schema class (issue #804).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from copy import deepcopy
from itertools import groupby
from typing import TYPE_CHECKING, Any

from drf_spectacular import openapi
from drf_spectacular.plumbing import ResolvedComponent

from ..endpoints import specification
from ..endpoints.specification import DocumentedResponse
from ..engine.conf import Idempotency, get_settings
from ..engine.request.problems import Problem
from ..exceptions import IdempotencyConfigurationError
from .declared import actions_of, declaration_of

if TYPE_CHECKING:
    _Base = openapi.AutoSchema
else:
    _Base = object

__all__ = ["AutoSchema", "IdempotencySchemaMixin"]

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
Schema = dict[str, Any]


class IdempotencySchemaMixin(_Base):
    """Shows the idempotency key in the schema of protected operations, with a schema class of the project's own.

    Put the mixin in front of the bases: `class ShopSchema(IdempotencySchemaMixin, AutoSchema)`.
    """

    def get_operation(self, *args: Any, **kwargs: Any) -> Schema | None:
        operation: Schema | None = super().get_operation(*args, **kwargs)
        if operation is not None:
            _describe(self, operation)
        return operation


class AutoSchema(IdempotencySchemaMixin, openapi.AutoSchema):
    """drf-spectacular's `AutoSchema` with `IdempotencySchemaMixin`. For the setting `DEFAULT_SCHEMA_CLASS`."""


def undescribed(callback: Any) -> Iterator[tuple[str, type]]:
    """Protected methods behind a URL's callback whose schema class lacks the mixin: the view's name and that class."""
    cls, initkwargs = callback.cls, getattr(callback, "initkwargs", {})
    of_view = initkwargs.get("schema", cls.schema)
    if of_view is None or isinstance(of_view, IdempotencySchemaMixin):
        return  # None: the project has excluded the view
    for verb, action in actions_of(callback):
        # @extend_schema keeps its class on the method. drf-spectacular combines it with the class of the view.
        of_method = getattr(getattr(cls, action or verb), "kwargs", {}).get("schema")
        if isinstance(of_method, type) and issubclass(of_method, IdempotencySchemaMixin):
            continue
        declaration = declaration_of(cls, initkwargs, verb, action)
        with suppress(IdempotencyConfigurationError):  # E007 reports it
            if declaration.options_for(verb.upper()) is not None:
                yield declaration.view, type(of_view)


def _describe(schema: openapi.AutoSchema, operation: Schema) -> None:
    """Add to one operation in place, if it is protected."""
    view, method = schema.view, schema.method
    declaration = declaration_of(type(view), vars(view), method.lower(), getattr(view, "action", None))
    options = declaration.options_for(method)
    if options is None:
        return
    required = options.required and not declaration.decides_by_request
    if options.key is None:
        _add_parameter(operation, options, required)
    responses: Schema = operation["responses"]
    for status, response in responses.items():
        if str(status).startswith("2"):
            _headers(response)[get_settings().replayed_header] = {**_replayed(), "required": required}
    for status, documented in groupby(specification.documented_responses(options), key=lambda found: found.status):
        _add_responses(schema, responses, str(status), list(documented))


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
    schema: openapi.AutoSchema, responses: Schema, status: str, documented: list[DocumentedResponse]
) -> None:
    """The package's own responses with one status, beside the view's response with that status."""
    text = "\n".join(f"{found.title}: {found.meaning}" for found in documented)
    if status in responses:
        response = responses[status]
        response["description"] = "\n".join(filter(None, [response.get("description"), text]))
    else:
        response = responses[status] = {"description": text}
        if status == "400":
            # The framework answers bad input with 400 too, in a form that the project has not declared.
            response["content"] = {media_type: {"schema": {}} for media_type in schema.map_renderers("media_type")}
    if status == "202":
        # The body is the state of the first request, as on its status page.
        response.setdefault("content", {}).setdefault("application/json", {"schema": {"type": "object"}})
        _headers(response).setdefault("Location", {"schema": {"type": "string", "format": "uri-reference"}})
    elif get_settings().error_response is None:
        response.setdefault("content", {}).setdefault(PROBLEM_TYPE, {"schema": _problem(schema)})
    headers = _headers(response)
    headers.setdefault(get_settings().replayed_header, _replayed())
    if any(found.retry_after for found in documented):
        headers.setdefault("Retry-After", {"schema": {"type": "integer", "minimum": 1}, "description": "Seconds."})


def _headers(response: Schema) -> Schema:
    headers: Schema = response.setdefault("headers", {})
    return headers


def _replayed() -> Schema:
    text = "Whether this is the kept answer of an earlier request. Missing: no key was honoured."
    return {"schema": {"type": "string", "enum": ["true", "false"]}, "description": text}


def _problem(schema: openapi.AutoSchema) -> Schema:
    # A copy, because post-processing hooks may change it.
    component: Any = ResolvedComponent(  # type: ignore[no-untyped-call]
        name="IdempotencyProblem", type=ResolvedComponent.SCHEMA, schema=deepcopy(PROBLEM), object=Problem
    )
    schema.registry.register_on_missing(component)
    return dict(component.ref)
