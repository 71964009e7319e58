"""The operation of a leased view that runs without a key: `required=False`, or `ENABLED` is False."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from inspect import isawaitable
from typing import Any, ParamSpec, TypeVar, cast
from uuid import UUID, uuid4, uuid5

from django.db import transaction

from .operation import Operation, checked_name, refuse_coroutine

P = ParamSpec("P")
T = TypeVar("T")


class UnkeyedOperation(Operation):
    """Runs its steps and remembers nothing, because there is no key to recognise a retry by.

    `key` is None and `attempt` is 1. `derive_key` is stable within this request only.
    """

    def __init__(self, alias: str) -> None:
        self.key = None
        self.attempt = 1
        self._alias = alias
        self._used: set[str] = set()
        self._namespace: UUID = uuid4()

    @property
    def in_doubt(self) -> tuple[str, ...]:
        return ()

    @property
    def status_url(self) -> None:
        return None

    @property
    def results(self) -> dict[str, Any]:
        return {}

    def derive_key(self, name: str) -> str:
        return str(uuid5(self._namespace, checked_name(name)))

    def call(self, name: str, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        refuse_coroutine(name, function, "acall")
        self._use(name)
        return function(*args, **kwargs)

    def write(self, name: str, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        refuse_coroutine(name, function, "awrite")
        self._use(name)
        with transaction.atomic(using=self._alias):
            return function(*args, **kwargs)

    def renew(self) -> None:
        pass

    async def acall(
        self, name: str, function: Callable[P, Awaitable[T] | T], /, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        self._use(name)
        result: Any = function(*args, **kwargs)
        return cast(T, await result if isawaitable(result) else result)

    async def arenew(self) -> None:
        pass
