"""`request.idempotency`: the operation of a protected view."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest

from ...exceptions import IdempotencyConfigurationError
from ..execution.operation import Operation


class IdempotentHttpRequest(HttpRequest):
    """The request that a protected view gets, for annotations."""

    idempotency: Operation


def get_operation(request: Any) -> Operation:
    """The operation of the protected view that handles this request. `request.idempotency` is the same object.

    In leased mode it has steps. In atomic mode it has a key, a reference and `refer_to`. Its `key` is None if the view
    runs without a key.

    Args:
        request: Django's or the REST framework's request.

    Raises:
        IdempotencyConfigurationError: outside of protected views.
    """
    operation = getattr(request, "idempotency", None)
    if not isinstance(operation, Operation):
        raise IdempotencyConfigurationError(
            "this request is not inside a protected view, so it has no operation. Protect the view with @idempotent or "
            "with IdempotencyMixin."
        )
    return operation
