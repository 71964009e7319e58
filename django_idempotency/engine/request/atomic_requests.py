"""ATOMIC_REQUESTS: who opens the transaction.

# Note [Taking ATOMIC_REQUESTS over]
Under ATOMIC_REQUESTS Django wraps the URL callback in `atomic(alias)`. A claim inside that block would only be a
savepoint, and the package would not see it when Django's COMMIT fails. So a protected callback carries a
`_non_atomic_requests` that names the alias of the keys, and the package opens the transaction. A request that only
passes through gets the `atomic(alias)` that Django would have opened.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from django.db import connections, transaction

from ..conf import Idempotency, resolve
from ..stores import alias_of


class TakenOver(set[str]):
    """A view's `_non_atomic_requests`: what the project opted out of, and the alias that the package opens itself.

    Django looks into it at each request, and its `non_atomic_requests` adds to it. The alias is asked for late: at
    import the settings may not be ready, and routers may choose another alias for each request.
    """

    def __init__(self, opted_out: Iterable[str], options: Callable[[], Idempotency]) -> None:
        super().__init__(opted_out)
        self.options = options

    def alias(self) -> str:
        return alias_of(self.options())

    def __contains__(self, alias: object) -> bool:
        return super().__contains__(alias) or alias == self.alias()


def take_over(view: Any, layers: Callable[[], tuple[Idempotency, ...]]) -> None:
    """Mark a protected callback. See Note [Taking ATOMIC_REQUESTS over]."""
    opted_out = getattr(view, "_non_atomic_requests", ())
    view._non_atomic_requests = TakenOver(opted_out, lambda: resolve(*layers()))


def as_django_would(request: Any) -> AbstractContextManager[Any]:
    """The transaction of a request that passes through. See Note [Taking ATOMIC_REQUESTS over]."""
    match_ = getattr(request, "resolver_match", None)
    mark = getattr(getattr(match_, "func", None), "_non_atomic_requests", None)  # a test's match may lack func
    if isinstance(mark, TakenOver):
        alias = mark.alias()
        if not set.__contains__(mark, alias) and connections[alias].settings_dict["ATOMIC_REQUESTS"]:
            return transaction.atomic(using=alias)
    return nullcontext()
