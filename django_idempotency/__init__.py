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
        NotResolvable,
        NotRun,
        OperationInProgress,
        OutcomeUnknown,
        PayloadMismatch,
        ResultNotStorable,
        StoreBusy,
        TransactionBroken,
    )
    from .execution.once import Result, arun_once, once, run_once
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
    "NotResolvable",
    "NotRun",
    "Operation",
    "OperationInProgress",
    "OutcomeUnknown",
    "PayloadMismatch",
    "Result",
    "ResultNotStorable",
    "StoreBusy",
    "TransactionBroken",
    "arun_once",
    "get_operation",
    "idempotent",
    "once",
    "run_once",
]

_HOME = {
    "Idempotency": ".conf",
    "IdempotentHttpRequest": ".http.operations",
    "Operation": ".execution.steps",
    **dict.fromkeys(("Result", "arun_once", "once", "run_once"), ".execution.once"),
    "get_operation": ".http.operations",
    "idempotent": ".http.decorators",
}


if not TYPE_CHECKING:  # to a type checker every name would exist

    def __getattr__(name: str) -> Any:
        """Import late: Django imports this package before its models may be."""
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(_HOME.get(name, ".exceptions"), __name__), name)
