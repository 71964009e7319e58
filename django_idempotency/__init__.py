"""Idempotency keys for Django and Django REST framework: a retried request never writes twice."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .conf import Idempotency
    from .exceptions import (
        ClaimLost,
        IdempotencyConfigurationError,
        IdempotencyError,
        LeaseLost,
        ResultNotStorable,
        TransactionBroken,
    )
    from .execution.steps import Operation
    from .http.decorators import idempotent
    from .http.operations import IdempotentHttpRequest, get_operation

__all__ = [
    "ClaimLost",
    "Idempotency",
    "IdempotencyConfigurationError",
    "IdempotencyError",
    "IdempotentHttpRequest",
    "LeaseLost",
    "Operation",
    "ResultNotStorable",
    "TransactionBroken",
    "get_operation",
    "idempotent",
]

_HOME = {
    "Idempotency": ".conf",
    "IdempotentHttpRequest": ".http.operations",
    "Operation": ".execution.steps",
    "get_operation": ".http.operations",
    "idempotent": ".http.decorators",
}


def __getattr__(name: str) -> Any:
    """Import late: Django imports this package before its models may be."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOME.get(name, ".exceptions"), __name__), name)
