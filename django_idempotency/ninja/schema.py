"""This module is for OpenAPI with Django Ninja. The class `NinjaAPI` of this module adds the headers and the error
answers of protected operations to the schema. For example:

    from django_idempotency.ninja.schema import NinjaAPI

    api = NinjaAPI()

If your project has an API class of its own, write a new class with two base classes. The first base class is this
`NinjaAPI`, and the second base class is your own API class. If your project itself declares a header or a status, the
schema keeps your declaration.

This module replaces `NinjaAPI.get_openapi_schema`, the only public method of Django Ninja that can change the schema.
The value `openapi_extra` of an operation cannot be used. Django Ninja makes this value before the options of the router
and of the API are known.
"""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import ninja
from ninja.openapi.schema import OpenAPISchema
from ninja.operation import Operation

from ..endpoints import specification
from ..endpoints.specification import Schema
from ..engine.declare.registry import MARK, Declaration

__all__ = ["NinjaAPI"]


class NinjaAPI(ninja.NinjaAPI):
    """This subclass of Django Ninja's `NinjaAPI` also shows the idempotency key of protected operations in the schema.

    If you have an API class of your own, write `class ShopAPI(NinjaAPI, OwnAPI)`.
    """

    def get_openapi_schema(
        self, *, path_prefix: str | None = None, path_params: dict[str, Any] | None = None
    ) -> OpenAPISchema:
        return _Schema(self, self.get_root_path(path_params or {}) if path_prefix is None else path_prefix)


class _Schema(OpenAPISchema):
    def methods(self, operations: list[Operation]) -> Schema:
        found: Schema = super().methods(operations)
        for operation in operations:
            declaration: Declaration | None = getattr(operation, MARK, None)
            shown = declaration if operation.include_in_schema else None
            for method in operation.methods:
                options = None if shown is None else shown.options_for(method)
                if options is not None:
                    # Django Ninja uses one description for all methods of an operation. So the description must be
                    # copied for each method.
                    found[method.lower()] = details = deepcopy(found[method.lower()])
                    own = [str(operation.api.renderer.media_type)]
                    bad_input = {400: own, 422: own}  # Django Ninja itself answers bad input with 400 or 422.
                    specification.describe(
                        details, options, required=options.required, status_type=int, undeclared=bad_input
                    )
                    self.add_schema_definitions(specification.components())
        return found
