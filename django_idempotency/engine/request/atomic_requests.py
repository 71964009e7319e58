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

from ..conf import Idempotency
from ..stores import alias_of


class TakenOver(set[str]):
    """A view's `_non_atomic_requests`: what the project opted out of, and the alias that we open ourselves."""

    def __init__(self, opted_out: Iterable[str], options: Callable[[], Idempotency]) -> None:
        super().__init__(opted_out)
        self.options = options  # asked late: settings may not be ready at import

    def alias(self) -> str:
        return alias_of(self.options())

    def __contains__(self, alias: object) -> bool:
        return super().__contains__(alias) or alias == self.alias()

    def covers(self, alias: str) -> bool:
        """Is it only because of us that Django opens no transaction on `alias`?"""
        return not super().__contains__(alias) and alias == self.alias()


NO_TRANSACTION: AbstractContextManager[Any] = nullcontext()


def as_django_would(request: Any) -> AbstractContextManager[Any]:
    """The transaction of a request that passes through. See Note [Taking ATOMIC_REQUESTS over]."""
    match_ = getattr(request, "resolver_match", None)
    mark = getattr(getattr(match_, "func", None), "_non_atomic_requests", None)  # a test's match may lack func
    if isinstance(mark, TakenOver):
        alias = mark.alias()
        if mark.covers(alias) and connections[alias].settings_dict["ATOMIC_REQUESTS"]:
            return transaction.atomic(using=alias)
    return NO_TRANSACTION
