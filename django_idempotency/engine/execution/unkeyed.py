"""The operation of a leased view that runs without a key: `required=False`, or `ENABLED` is False."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import ParamSpec, TypeVar, cast

from django.db import transaction

from .handle import Handle
from .operation import Operation, _awaited
from .steps import refuse_coroutine

P = ParamSpec("P")
T = TypeVar("T")


class UnkeyedOperation(Operation):
    """Runs its steps and remembers nothing, because there is no key to recognise a retry by.

    `key` is None and `attempt` is 1. `derive_key` is stable within this request only.
    """

    def __init__(self, alias: str) -> None:
        Handle.__init__(self, None)
        self._alias = alias
        self._used: set[str] = set()
        self._kept: dict[str, str | None] = {}

    @property
    def in_doubt(self) -> tuple[str, ...]:
        return ()

    @property
    def status_url(self) -> None:
        return None

    def call(self, name: str, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        refuse_coroutine(name, function, "acall")
        self._use(name)
        return function(*args, **kwargs)

    def fetch(self, name: str, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        refuse_coroutine(name, function, "afetch")
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
        return cast(T, await _awaited(function, *args, **kwargs))

    async def afetch(
        self, name: str, function: Callable[P, Awaitable[T] | T], /, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        return await self.acall(name, function, *args, **kwargs)

    async def arenew(self) -> None:
        pass

    _keep_resource = Handle._keep_resource  # there is no key to keep it with
