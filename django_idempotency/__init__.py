"""Idempotency keys for Django and Django REST framework: a retried request never writes twice."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .engine.conf import Fingerprint, Idempotency
    from .engine.declare.decorators import idempotent, once
    from .engine.execution.once import Result, arun_once, run_once
    from .engine.execution.operation import Operation
    from .engine.request.view_call import IdempotentHttpRequest, get_operation
    from .exceptions import (
        ClaimLost,
        IdempotencyConfigurationError,
        IdempotencyError,
        LeaseLost,
        NotDecryptable,
        NotResolvable,
        NotRun,
        OperationInProgress,
        OutcomeUnknown,
        PayloadMismatch,
        ResultNotStorable,
        StoreBusy,
        TransactionBroken,
    )

__all__ = [
    "ClaimLost",
    "Fingerprint",
    "Idempotency",
    "IdempotencyConfigurationError",
    "IdempotencyError",
    "IdempotentHttpRequest",
    "LeaseLost",
    "NotDecryptable",
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
    **dict.fromkeys(("Fingerprint", "Idempotency"), ".engine.conf"),
    "IdempotentHttpRequest": ".engine.request.view_call",
    "Operation": ".engine.execution.operation",
    **dict.fromkeys(("Result", "arun_once", "run_once"), ".engine.execution.once"),
    "once": ".engine.declare.decorators",
    "get_operation": ".engine.request.view_call",
    "idempotent": ".engine.declare.decorators",
}
"""Where each name that is no exception comes from: the same modules as above."""


if not TYPE_CHECKING:  # to a type checker every name would exist

    def __getattr__(name: str) -> Any:
        """Import late: Django imports this package before its models may be."""
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(_HOME.get(name, ".exceptions"), __name__), name)
