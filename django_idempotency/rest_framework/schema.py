"""OpenAPI with drf-spectacular: the schema shows the headers and error responses of protected operations.

    REST_FRAMEWORK = {"DEFAULT_SCHEMA_CLASS": "django_idempotency.rest_framework.schema.AutoSchema"}

A project's own schema class must have `AutoSchema` as its first base class. Headers and statuses that the project
declares itself are left as they are.

drf-spectacular's maintainer recommends a schema class in issue #804. An `OpenApiViewExtension` does not
work for a method with `@extend_schema`, and a post-processing hook does not receive the view.
"""

from __future__ import annotations

from typing import Any

from drf_spectacular import openapi
from drf_spectacular.plumbing import ResolvedComponent

from ..endpoints import specification
from ..endpoints.listing import of_handler
from ..endpoints.specification import Schema
from ..engine.request.problems import Problem

__all__ = ["AutoSchema"]


class AutoSchema(openapi.AutoSchema):
    """drf-spectacular's `AutoSchema`, which also shows the idempotency key of protected operations.

    Set `DEFAULT_SCHEMA_CLASS` to its dotted path. If your project has its own schema class, write
    `class ShopSchema(AutoSchema, OwnSchema)`.
    """

    def get_operation(self, *args: Any, **kwargs: Any) -> Schema | None:
        operation: Schema | None = super().get_operation(*args, **kwargs)
        answers = of_handler(
            type(self.view), vars(self.view), self.method, getattr(self.view, "action", None) or self.method.lower()
        )
        options = answers.options_for(self.method)
        if operation is None or options is None or options.observe:
            return operation
        specification.describe(
            operation,
            options,
            required=options.required and not answers.by_request,
            undeclared={400: self.map_renderers("media_type")},  # how the REST framework answers bad input
        )
        for name, definition in specification.components().items():
            component: Any = ResolvedComponent(  # type: ignore[no-untyped-call]
                name=name, type=ResolvedComponent.SCHEMA, schema=definition, object=Problem
            )
            self.registry.register_on_missing(component)
        return operation
