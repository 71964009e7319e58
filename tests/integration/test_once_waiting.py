"""`@once` waits for a running delivery: a queue takes "not now" for the end of a task."""

from __future__ import annotations

from threading import Event, Timer
from typing import Any

import pytest
from django.test import override_settings

from django_idempotency import Idempotency, OperationInProgress, once, run_once
from django_idempotency.engine.execution.once import patience


@pytest.mark.only_on("postgresql", "mysql")
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("options", [{}, {"lease": 30}])
def test_a_delivery_waits_for_the_one_that_is_running(in_threads: Any, options: Any) -> None:
    """Both end with the result of the first."""
    started, go = Event(), Event()

    @once(scope="tasks", key=lambda order: order, operation="held", **options)
    def held(order: str, **_: Any) -> str:
        started.set()
        assert go.wait(30)
        return f"{order} shipped"

    def deliver(number: int) -> str:
        if number:
            assert started.wait(30)
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


@pytest.mark.only_on("postgresql", "mysql")
@pytest.mark.django_db(transaction=True)
def test_run_once_does_not_wait(in_threads: Any) -> None:
    """Its caller catches what it raises, and knows when to come again."""
    started, go = Event(), Event()

    def held() -> None:
        started.set()
        assert go.wait(30)

    def deliver(number: int) -> Any:
        if not number:
            return run_once(held, scope="s", key="k", operation="held").replayed
        assert started.wait(30)
        try:
            return run_once(held, scope="s", key="k", operation="held").replayed
        except OperationInProgress as error:
            return error.retry_after
        finally:
            go.set()

    assert in_threads(2, deliver) == [False, 1]
