"""`request.idempotency`: the operation of a leased view."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest

from ...exceptions import IdempotencyConfigurationError
from ..execution.operation import Operation


class IdempotentHttpRequest(HttpRequest):
    """For annotations: the request that a leased view gets."""

    idempotency: Operation


def get_operation(request: Any) -> Operation:
    """The operation of the leased view that this request is in; also as `request.idempotency`.

    request: Django's or the REST framework's. Raises `IdempotencyConfigurationError` outside of leased views.
    """
    operation = getattr(request, "idempotency", None)
    if not isinstance(operation, Operation):
        raise IdempotencyConfigurationError(
            "this request is not inside a leased view, so it has no operation. Protect the view with "
            "@idempotent(lease=timedelta(minutes=2)), and send a method that it protects."
        )
    return operation
