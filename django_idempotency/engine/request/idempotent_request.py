"""`request.idempotency`: the operation of a leased view."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest

from ...exceptions import IdempotencyConfigurationError
from ..execution.operation import Operation


class IdempotentHttpRequest(HttpRequest):
    """The request that a leased view gets, for annotations."""

    idempotency: Operation


def get_operation(request: Any) -> Operation:
    """The operation of the leased view that handles this request. `request.idempotency` is the same object.

    Args:
        request: Django's or the REST framework's request.

    Raises:
        IdempotencyConfigurationError: outside of leased views.
    """
    operation = getattr(request, "idempotency", None)
    if not isinstance(operation, Operation):
        raise IdempotencyConfigurationError(
            "this request is not inside a leased view, so it has no operation. Protect the view with "
            "@idempotent(lease=timedelta(minutes=2)), and send a method that it protects."
        )
    return operation
