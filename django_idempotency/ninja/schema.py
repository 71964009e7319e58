"""OpenAPI by Django Ninja: protected operations show the key's header, the replay header and the error answers.

    from django_idempotency.ninja.schema import NinjaAPI

    api = NinjaAPI()

A project with an API class of its own puts this one in front of its bases. What the project has declared itself, for
the same header or status, stays.

Django Ninja has one public place for this, `NinjaAPI.get_openapi_schema`: an operation's `openapi_extra` is fixed
before the options of its router and of its API are known.
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

    With an API class of your own: `class ShopAPI(NinjaAPI, OwnAPI)`.
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
            if declaration is None or not operation.include_in_schema:
                continue
            for method in operation.methods:
                if (options := declaration.options_for(method)) is not None:
                    # A copy, because Django Ninja shares one description among the methods of an operation.
                    found[method.lower()] = details = deepcopy(found[method.lower()])
                    own = [str(operation.api.renderer.media_type)]
                    bad_input = {400: own, 422: own}  # the framework answers so
                    specification.describe(
                        details, options, required=options.required, status_type=int, undeclared=bad_input
                    )
                    self.add_schema_definitions(specification.components())
        return found
