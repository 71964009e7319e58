"""`recover_idempotency_keys()`, for keys of any age, and what it told."""

from __future__ import annotations

from typing import Any

from django_idempotency.maintenance import Asked, Recovered, recover_idempotency_keys


def recover(**options: Any) -> tuple[Recovered, list[Asked]]:
    told: list[Asked] = []
    return recover_idempotency_keys(**{"older_than": 0, "progress": told.append, **options}), told


def only(**options: Any) -> Asked:
    (asked,) = recover(**options)[1]
    return asked


def records(operation: Any) -> None:
    """A `reconcile` that finds the charge in the books, and leaves the rest to the retry."""
    operation.call("charge", lambda: {"charge": "found"})
