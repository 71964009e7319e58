"""OpenAPI by drf-spectacular: protected operations show the key's header, the replay header and the error answers.

    REST_FRAMEWORK = {"DEFAULT_SCHEMA_CLASS": "django_idempotency.rest_framework.schema.AutoSchema"}

A project with a schema class of its own puts `IdempotencySchemaMixin` in front of the bases of that class. What the
project has declared itself, for the same header or status, stays.

Other extension points of drf-spectacular miss operations: `@extend_schema` on a method leaves out an
`OpenApiViewExtension`, and a post-processing hook knows no view. The maintainer recommends a schema class (issue #804).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from drf_spectacular import openapi
from drf_spectacular.plumbing import ResolvedComponent

from ..endpoints import specification
from ..endpoints.listing import of_handler
from ..endpoints.specification import Schema
from ..engine.request.problems import Problem

if TYPE_CHECKING:
    _Base = openapi.AutoSchema
else:
    _Base = object

__all__ = ["AutoSchema", "IdempotencySchemaMixin"]


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


def _describe(schema: openapi.AutoSchema, operation: Schema) -> None:
    """Add to one operation in place, if it is protected."""
    view, method = schema.view, schema.method
    answers = of_handler(type(view), vars(view), method, getattr(view, "action", None) or method.lower())
    options = answers.options_for(method)
    if options is None:
        return
    specification.describe(
        operation,
        options,
        required=options.required and not answers.by_request,
        undeclared={400: schema.map_renderers("media_type")},  # the framework's answer to bad input
    )
    for name, definition in specification.components().items():
        component: Any = ResolvedComponent(  # type: ignore[no-untyped-call]
            name=name, type=ResolvedComponent.SCHEMA, schema=definition, object=Problem
        )
        schema.registry.register_on_missing(component)
