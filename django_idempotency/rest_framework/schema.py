"""OpenAPI with drf-spectacular. The schema shows the headers and the error answers of protected operations.

    REST_FRAMEWORK = {"DEFAULT_SCHEMA_CLASS": "django_idempotency.rest_framework.schema.AutoSchema"}

If a project has its own schema class, the class must have `AutoSchema` as its first base class. If a project itself
declares a header or a status of an operation, the package does not change the declaration.

The package has its own schema class, because the other ways to extend drf-spectacular do not work for all operations.
An `OpenApiViewExtension` does not work for a method that has the decorator `@extend_schema`. The view is not an
argument of a post-processing hook. In issue #804, the maintainer of drf-spectacular recommends a schema class.
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
    """This class extends drf-spectacular's own `AutoSchema`. For each protected operation, the schema also shows the
    idempotency key.

    Write the dotted name of this class into the setting `DEFAULT_SCHEMA_CLASS`. If your project has its own schema
    class, write `class ShopSchema(AutoSchema, OwnSchema)`.
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
            undeclared={400: self.map_renderers("media_type")},  # the REST framework answers bad input with 400
        )
        for name, definition in specification.components().items():
            component: Any = ResolvedComponent(  # type: ignore[no-untyped-call]
                name=name, type=ResolvedComponent.SCHEMA, schema=definition, object=Problem
            )
            self.registry.register_on_missing(component)
        return operation
