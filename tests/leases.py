"""What happens to leased keys in tests: calls that break, workers that die, leases that run out."""

from __future__ import annotations

from datetime import timedelta
from threading import Event
from typing import Any

from django.utils import timezone

from django_idempotency.models import IdempotencyKey


class Broken(Exception):
    """What breaks in these tests."""


def breaks(*args: Any) -> Any:
    raise Broken("it broke, token=tok_123")


class Slow:
    """Stops the first thread that comes by until `go` is set."""

    def __init__(self) -> None:
        self.arrived, self.go, self.used = Event(), Event(), False

    def __call__(self, *args: Any) -> None:
        if not self.used:
            self.used = True
            self.arrived.set()
            assert self.go.wait(30), "the test never let the worker go on"


def lapse(**which: Any) -> None:
    """Every lease of these keys runs out. Default: of all."""
    leased = IdempotencyKey.objects.filter(**which).exclude(locked_until=None)
    # By their ids: on InnoDB an UPDATE locks each row that it passes on its way, and would deadlock with the servers.
    ids = list(leased.values_list("pk", flat=True))
    IdempotencyKey.objects.filter(pk__in=ids).update(locked_until=timezone.now() - timedelta(hours=1))


def as_if_killed() -> None:
    """What an exception has released looks as if its worker had died on the spot, and its lease had run out."""
    past = timezone.now() - timedelta(days=1)
    changed = IdempotencyKey.objects.filter(status="failed").update(
        status="in_progress", locked_until=past, last_error=None, attention_at=None
    )
    assert changed == 1


def row() -> IdempotencyKey:
    return IdempotencyKey.objects.get()
