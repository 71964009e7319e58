from __future__ import annotations

from copy import deepcopy
from typing import Any

from drf_spectacular.openapi import AutoSchema

ANYTHING = {"schema": {}}
ERRORS = {
    "400": {"description": "Not a valid order.", "content": {"application/json": ANYTHING}},
    "401": {"description": "No valid credentials.", "content": {"application/json": ANYTHING}},
    # For an unknown URL Django answers with an HTML page.
    "404": {"description": "No such order.", "content": {"application/json": ANYTHING, "text/html": ANYTHING}},
}


class ShopSchema(AutoSchema):
    """Adds the error responses of the framework, which drf-spectacular leaves out."""

    def get_operation(self, *args: Any) -> dict[str, Any] | None:
        operation = super().get_operation(*args)
        if operation is not None:
            for status, response in ERRORS.items():
                operation["responses"].setdefault(status, response)
        return operation


def add_plain_view(result: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
    """Add POST /orders/, a plain Django view that drf-spectacular does not see. POST /api/orders/ is the model."""
    operation = deepcopy(result["paths"]["/api/orders/"]["post"])
    del operation["responses"]["401"]
    order = {name: result["components"]["schemas"]["Order"]["properties"][name] for name in ("item", "quantity")}
    body = {"application/json": {"schema": {"type": "object", "properties": order, "required": ["item"]}}}
    operation["responses"]["201"]["content"] = body
    result["paths"]["/orders/"] = {
        "post": {
            **operation,
            "operationId": "plain_orders_create",
            "requestBody": {"required": True, "content": body},
            "security": [],
        }
    }
    return result
