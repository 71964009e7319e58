"""What a consumer does with a message: it dies after the COMMIT of the first delivery, before the acknowledgement."""

from __future__ import annotations

import os
import signal
from uuid import uuid4

from django_idempotency import once
from tests.shopapp.models import Ledger, Order


def place_order(reference: str) -> str:
    """The result differs each time that this runs."""
    Order.objects.create(reference=reference)
    return uuid4().hex


place_order_once = once(scope="messages", key=lambda reference: reference)(place_order)


def handle(message: str) -> None:
    """Place one order that is protected, and one that is not."""
    protected, unprotected = place_order_once(message), place_order(f"{message} unprotected")
    is_first = not results(message)
    Ledger.objects.create(entry=f"{message} {protected} {unprotected[:16]}")
    if is_first:
        os.kill(os.getpid(), signal.SIGKILL)


def results(message: str) -> list[list[str]]:
    """For each delivery: the result of the protected order, and of the other one."""
    entries = Ledger.objects.filter(entry__startswith=message).order_by("pk").values_list("entry", flat=True)
    return [entry.split()[1:] for entry in entries]
