"""`@once` waits for a running delivery: a queue takes "not now" for the end of a task."""

from __future__ import annotations

from datetime import timedelta
from threading import Event, Timer
from typing import Any

import pytest
from django.db import transaction
from django.test import override_settings
from django.utils import timezone

from django_idempotency import Idempotency, OperationInProgress, once
from django_idempotency.engine.execution.once import patience
from django_idempotency.models import IdempotencyKey
from django_idempotency.testing import create_key
from tests.leases import breaks


@pytest.mark.only_on("postgresql", "mysql")
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("options", [{}, {"lease": 30}])
def test_a_delivery_waits_for_the_one_that_is_running(in_threads: Any, options: Any) -> None:
    """Both end with the result of the first."""
    started, go = Event(), Event()

    @once(scope="tasks", key=lambda order: order, operation="held", **options)
    def held(order: str, **_: Any) -> str:
        started.set()
        assert go.wait(30), "the duplicate never came"
        return f"{order} shipped"

    def deliver(number: int) -> str:
        if number:
            assert started.wait(30), "the first delivery never began"
            Timer(0.3, go.set).start()  # by then the second delivery would have failed, if it did not wait
        return held("7")

    assert in_threads(2, deliver) == ["7 shipped", "7 shipped"]


@pytest.mark.parametrize(
    ("options", "setting", "seconds"),
    [
        ({}, {}, 60),
        ({"lease": 5}, {}, 60),
        ({"lease": 120}, {}, 120),
        ({}, {"LEASE": 90}, 90),
        ({"wait": 0}, {}, 0),
        ({"lease": 120, "wait": 3}, {}, 3),
        ({}, {"WAIT": 5}, 5),
        ({"wait": 0}, {"WAIT": 5}, 0),
    ],
)
def test_how_long_it_waits(options: Any, setting: Any, seconds: float) -> None:
    """A minute, or the lease of a worker that may be dead; the project's own number comes before both."""
    with override_settings(IDEMPOTENCY=setting):
        assert patience(Idempotency(**options)) == seconds


@pytest.mark.django_db(transaction=True)
def test_no_waiting_delivery_starts_once_the_endpoints_are_paused(settings: Any) -> None:
    """Its worker is dead, and the lease ends as the endpoints are paused: the key is free."""
    create_key("7", scope="tasks", operation="held", status="in_progress")
    IdempotencyKey.objects.update(locked_until=timezone.now() + timedelta(seconds=20))
    asked: list[bool] = []

    def paused() -> bool:
        asked.append(True)
        if len(asked) == 1:  # before its claim
            return False
        IdempotencyKey.objects.update(locked_until=timezone.now())
        return True

    settings.IDEMPOTENCY = {"PAUSED": paused}
    held = once(scope="tasks", key=str, operation="held", lease=30)(breaks)
    with pytest.raises(OperationInProgress):
        held("7")


@pytest.mark.django_db(transaction=True)
def test_inside_a_transaction_no_delivery_waits(settings: Any) -> None:
    """It would hold the caller's locks all the time. Who waits asks again whether the endpoints are paused."""
    create_key("7", scope="tasks", operation="held", status="in_progress")
    IdempotencyKey.objects.update(locked_until=timezone.now() + timedelta(seconds=20))
    asked: list[bool] = []
    settings.IDEMPOTENCY = {"PAUSED": lambda: bool(asked.append(True))}
    held = once(scope="tasks", key=str, operation="held")(breaks)
    with transaction.atomic(), pytest.raises(OperationInProgress):
        held("7")
    assert asked == [True]
