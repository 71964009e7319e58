"""OpenAPI with drf-spectacular. The schema shows the headers and the error answers of protected operations.

    REST_FRAMEWORK = {"DEFAULT_SCHEMA_CLASS": "django_idempotency.rest_framework.schema.AutoSchema"}

A project with a schema class of its own puts this class before the other base classes. If the project has declared one
of these headers or statuses, its declaration stays.

This is a schema class because other extensions of drf-spectacular miss operations. An `OpenApiViewExtension` does not
work for a method with `@extend_schema`, and a post-processing hook does not get the view. The maintainer of
drf-spectacular recommends a schema class (issue #804).
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

    Use it in the setting `DEFAULT_SCHEMA_CLASS`. If you have a schema class of your own, write `class
    ShopSchema(AutoSchema, OwnSchema)`.
    """

    def get_operation(self, *args: Any, **kwargs: Any) -> Schema | None:
        operation: Schema | None = super().get_operation(*args, **kwargs)
        answers = of_handler(
            type(self.view), vars(self.view), self.method, getattr(self.view, "action", None) or self.method.lower()
        )
        options = answers.options_for(self.method)
        if operation is None or options is None:
            return operation
        specification.describe(
            operation,
            options,
            required=options.required and not answers.by_request,
            undeclared={400: self.map_renderers("media_type")},  # the framework itself answers 400 to bad input
        )
        for name, definition in specification.components().items():
            component: Any = ResolvedComponent(  # type: ignore[no-untyped-call]
                name=name, type=ResolvedComponent.SCHEMA, schema=definition, object=Problem
            )
            self.registry.register_on_missing(component)
        return operation
