from __future__ import annotations

from typing import Any

from drf_spectacular.openapi import AutoSchema

ANYTHING = {"schema": {}}
ERRORS = {
    "400": {"description": "Not a valid order.", "content": {"application/json": ANYTHING}},
    "401": {"description": "No valid credentials.", "content": {"application/json": ANYTHING}},
    # Django answers with a page if not even the URL is one.
    "404": {"description": "No such order.", "content": {"application/json": ANYTHING, "text/html": ANYTHING}},
}


class ShopSchema(AutoSchema):
    """Adds the framework's own error answers, which drf-spectacular does not write down."""

    def get_operation(self, *args: Any) -> dict[str, Any] | None:
        operation = super().get_operation(*args)
        if operation is not None:
            for status, response in ERRORS.items():
                operation["responses"].setdefault(status, response)
        return operation
