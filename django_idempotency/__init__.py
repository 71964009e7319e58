"""Idempotency keys for Django and Django REST framework: a retried request never writes twice."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from . import exceptions
from .exceptions import *  # noqa: F403

if TYPE_CHECKING:
    from .engine.conf import Idempotency
    from .engine.declare.decorators import idempotent, once
    from .engine.execution.once import Result, arun_once, run_once
    from .engine.execution.operation import Operation
    from .engine.execution.steps import CallInDoubt
    from .engine.request.problems import problem_response
    from .engine.request.view_call import IdempotentHttpRequest, get_operation

__all__ = [
    "CallInDoubt",
    "Idempotency",
    "IdempotentHttpRequest",
    "Operation",
    "Result",
    "arun_once",
    "get_operation",
    "idempotent",
    "once",
    "problem_response",
    "run_once",
]
__all__ += exceptions.__all__

_HOMES = {
    ".engine.conf": ("Idempotency",),
    ".engine.declare.decorators": ("idempotent", "once"),
    ".engine.execution.once": ("Result", "arun_once", "run_once"),
    ".engine.execution.operation": ("Operation",),
    ".engine.execution.steps": ("CallInDoubt",),
    ".engine.request.problems": ("problem_response",),
    ".engine.request.view_call": ("IdempotentHttpRequest", "get_operation"),
}
"""The module of each name that is not an exception. The imports above name the same modules."""


# Hidden from type checkers, which would otherwise accept wrong names.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """Import a public name only when it is first used, because Django imports this file before models can load."""
        for home, names in _HOMES.items():
            if name in names:
                return getattr(import_module(home, __name__), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
