from __future__ import annotations

from copy import deepcopy
from typing import Any

from django_idempotency.rest_framework.schema import AutoSchema

ANYTHING = {"schema": {}}
ERRORS = {
    "400": {"description": "Not a valid order.", "content": {"application/json": ANYTHING}},
    "401": {"description": "No valid credentials.", "content": {"application/json": ANYTHING}},
    # Django answers with a page if not even the URL is one.
    "404": {"description": "No such order.", "content": {"application/json": ANYTHING, "text/html": ANYTHING}},
}


class ShopSchema(AutoSchema):
    """Shows the idempotency key, as its base class does, and adds the error responses of the framework."""

    def get_operation(self, *args: Any) -> dict[str, Any] | None:
        operation = super().get_operation(*args)
        if operation is not None:
            for status, response in ERRORS.items():
                operation["responses"].setdefault(status, response)
        return operation


def add_plain_view(result: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
    """POST /orders/ is plain Django, which drf-spectacular does not see. It is protected as POST /api/orders/ is."""
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
