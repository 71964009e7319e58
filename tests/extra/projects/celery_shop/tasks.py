from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

from celery import shared_task
from django.conf import settings

from django_idempotency import OperationInProgress, OutcomeUnknown, run_once
from tests.servers import http_post
from tests.shopapp.models import Ledger, Order

OPTIONS: dict[str, dict[str, Any]] = {
    "": {},
    "gateway with keys": {"lease": 5},
    "gateway without keys": {"lease": 5, "on_abandoned": "hold"},
}


@shared_task(bind=True, max_retries=None)
def place(self: Any, order: str, gateway: str, fault: str) -> None:
    """The gateway charges, if there is one, and then the order is saved."""

    def charge(key: str | None) -> None:
        headers = {} if key is None else {"Idempotency-Key": key}
        charged = http_post(
            f"{settings.GATEWAYS[gateway]}/charges", json={"amount": 1, "reference": order}, headers=headers
        )
        charged.raise_for_status()
        die("after the charge")

    def save() -> None:
        Order.objects.create(reference=order)
        die("before the COMMIT")

    def leased(operation: Any) -> None:
        operation.call("charge", charge, operation.derive_key("charge"))
        operation.write("order", save)

    def die(place: str) -> None:
        """The first delivery only."""
        died = Path(settings.FOLDER, f"{order} died")
        if fault == place and not died.exists():
            died.touch()
            os.kill(os.getpid(), signal.SIGKILL)

    try:
        if settings.PROTECTED:
            work = leased if gateway else save
            run_once(work, operation="place", scope="celery", key=order, **OPTIONS[gateway])
        else:
            if gateway:
                charge(None)
            save()
        outcome = "placed"
    except OperationInProgress as error:
        raise self.retry(countdown=error.retry_after) from error
    except OutcomeUnknown:
        outcome = "unknown"
    die("after the COMMIT")
    Ledger.objects.create(entry=f"{order} {outcome} {self.request.id}")
