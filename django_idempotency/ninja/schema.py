"""OpenAPI with Django Ninja. The schema shows the headers and the error answers of protected operations.

    from django_idempotency.ninja.schema import NinjaAPI

    api = NinjaAPI()

A project with an API class of its own puts this class before the other base classes. If the project has declared one of
these headers or statuses, its declaration stays.

Django Ninja has only one public method for this, `NinjaAPI.get_openapi_schema`. An operation's `openapi_extra` cannot
be used, because it is made before the options of the router and of the API are known.
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
    """Django Ninja's `NinjaAPI`, whose schema also shows the idempotency key of protected operations.

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
                    # This is a copy, because Django Ninja uses one description for all methods of an operation.
                    found[method.lower()] = details = deepcopy(found[method.lower()])
                    own = [str(operation.api.renderer.media_type)]
                    bad_input = {400: own, 422: own}  # the framework itself answers bad input with these
                    specification.describe(
                        details, options, required=options.required, status_type=int, undeclared=bad_input
                    )
                    self.add_schema_definitions(specification.components())
        return found
