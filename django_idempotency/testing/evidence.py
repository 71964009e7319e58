"""What an endpoint leaves behind, and how a test says that it is wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.db.models import Manager, Model, QuerySet

from ..engine.protocol.digests import key_hash
from ..models import IdempotencyKey
from .sending import Answer, Request

Creates = type[Model] | Manager[Any] | QuerySet[Any] | Callable[[], int] | None


class Effects:
    """Counts what the endpoint creates: `creates` is a model, a manager, a queryset, a function, or None."""

    def __init__(self, creates: Creates, alias: str) -> None:
        self.known = creates is not None
        self.name = "things that creates= counts"
        if isinstance(creates, type) and issubclass(creates, Model):
            self.name = f"{creates.__name__} rows"
            self._count: Callable[[], int] = creates._base_manager.using(alias).count
        elif isinstance(creates, (Manager, QuerySet)):
            self.name = f"{creates.model.__name__} rows"
            self._count = lambda: creates.all().count()
        else:
            function: Any = creates
            self._count = function or (lambda: 0)
        self.seen = self._count()

    def grown(self) -> int:
        """How many more there are than at the last look."""
        before, self.seen = self.seen, self._count()
        return self.seen - before

    def said(self, grown: int) -> str:
        """The count as evidence."""
        return f"It created {grown} more {self.name}." if self.known else "Pass creates= to have rows counted."


def wrong(request: Request, what: str, *evidence: object) -> AssertionError:
    """The failure, headline first."""
    lines = [f"{request.method} {request.path}: {what}", *(str(line) for line in evidence)]
    return AssertionError("\n  ".join(lines))


def kept_rows(key: str, alias: str) -> list[IdempotencyKey]:
    """What the key table holds under this key, whoever sent it for whatever."""
    rows = IdempotencyKey.objects.using(alias).filter(key_hash=key_hash(key)).order_by("pk")
    return [row for row in rows if row.key == key]


def why_run_again(first: Answer, rows: list[IdempotencyKey]) -> str:
    """Why a retry did not find the first answer, as far as the key table tells."""
    if not rows:
        return (
            f"No row was kept under the key: record= says that a {first.status} is not final, or the header was set by "
            "something else than this package."
        )
    if len(rows) > 1:
        names = "; ".join(f"scope {row.scope!r}, operation {row.operation!r}" for row in rows)
        return f"Each request became a key of its own: {names}. scope= and operation= must be the same in a retry."
    (row,) = rows
    return f"The key table holds one row: {row.status}, scope {row.scope!r}, operation {row.operation!r}."
