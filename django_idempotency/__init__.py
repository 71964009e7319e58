"""Idempotency keys for Django and Django REST framework: a retried request never writes twice."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .conf import Idempotency
    from .exceptions import ClaimLost, IdempotencyConfigurationError, IdempotencyError, TransactionBroken
    from .http.decorators import idempotent

__all__ = [
    "ClaimLost",
    "Idempotency",
    "IdempotencyConfigurationError",
    "IdempotencyError",
    "TransactionBroken",
    "idempotent",
]

_HOME = {
    "Idempotency": ".conf",
    "idempotent": ".http.decorators",
    **dict.fromkeys(
        ("ClaimLost", "IdempotencyConfigurationError", "IdempotencyError", "TransactionBroken"), ".exceptions"
    ),
}


def __getattr__(name: str) -> Any:
    """Import late: Django imports this package before its models may be."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOME[name], __name__), name)
