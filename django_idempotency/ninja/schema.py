"""OpenAPI with Django Ninja: the schema shows the headers and error responses of protected operations.

    from django_idempotency.ninja.schema import NinjaAPI

    api = NinjaAPI()

A project's own API class must have this `NinjaAPI` as its first base class. Headers and statuses that the project
itself declares are left as they are.

The schema can be changed only by replacing `get_openapi_schema`, because Django Ninja has no other public method for
it. An operation's `openapi_extra` can't be used instead, because it is set before the router's and the API's options
are known.
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
    """Django Ninja's `NinjaAPI`, which also shows the idempotency key of protected operations in the schema.

    If you have your own API class, write `class ShopAPI(NinjaAPI, OwnAPI)`.
    """

    def get_openapi_schema(
        self, *, path_prefix: str | None = None, path_params: dict[str, Any] | None = None
    ) -> OpenAPISchema:
        return _Schema(self, self.get_root_path(path_params or {}) if path_prefix is None else path_prefix)


class _Schema(OpenAPISchema):
    def methods(self, operations: list[Operation]) -> Schema:
        described: Schema = super().methods(operations)
        for operation in operations:
            declaration: Declaration | None = getattr(operation, MARK, None)
            shown = declaration if operation.include_in_schema else None
            for method in operation.methods:
                options = None if shown is None else shown.options_for(method)
                if options is not None and not options.observe:
                    # Django Ninja shares one description among all methods of an operation.
                    described[method.lower()] = details = deepcopy(described[method.lower()])
                    own = [str(operation.api.renderer.media_type)]
                    bad_input = {400: own, 422: own}  # how Django Ninja answers bad input
                    specification.describe(
                        details, options, required=options.required, status_type=int, undeclared=bad_input
                    )
                    self.add_schema_definitions(specification.components())
        return described
