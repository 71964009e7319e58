"""Leased views, and the books of the called service that they call."""

from __future__ import annotations

from datetime import timedelta

from django_idempotency import idempotent
from tests.views import charges, paths

LEASE = timedelta(minutes=2)
MADE: list[str] = []
"""The books of the called service: the key of each charge, as often as it was made."""


def charge(key: str = "") -> dict[str, str]:
    MADE.append(key)
    return {"id": f"ch_{key}"}


sends_its_key = charges(charge)
sends_no_key = charges(charge, keyed=False)
leased = idempotent(lease=LEASE)(sends_its_key)
urlpatterns = paths(
    leased=leased,
    no_derived_key=idempotent(lease=LEASE, on_abandoned="retry")(sends_no_key),
    held=idempotent(lease=LEASE, on_abandoned="hold")(sends_no_key),
)
