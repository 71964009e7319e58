"""Keys in a backend: what is refused, and calls without HTTP."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest
from django.db import connection, transaction
from django.http import HttpResponse
from django.test import Client
from django.urls import path

from django_idempotency import (
    IdempotencyConfigurationError,
    ResultLost,
    StoreBusy,
    get_operation,
    idempotent,
    once,
    run_once,
)
from tests.backends import FaultyBackend, no_answer
from tests.elsewhere import NAME, OPTIONS, RUNS, events, faulty_backend, posting, publish  # noqa: F401 (a fixture)
from tests.shopapp.models import Order

# --- what is refused


@pytest.mark.parametrize("enabled", [True, False])
@pytest.mark.parametrize("step", ["call", "fetch", "write"])
def test_steps_are_refused(step: str, enabled: bool, settings: Any) -> None:
    """Also while the protection is off."""
    settings.IDEMPOTENCY |= {"ENABLED": enabled}
    with pytest.raises(IdempotencyConfigurationError, match="leave backend out: leased mode has steps"):
        posting(lambda request: getattr(get_operation(request), step)("charge", print))()


def test_switched_off_the_operation_does_what_it_can(settings: Any) -> None:
    """It derives the same keys, and has nothing to renew."""
    keys = []

    def derives(request: Any) -> HttpResponse:
        operation = get_operation(request)
        operation.renew()
        operation.refer_to("event", 7)
        keys.append(operation.derive_key("publish"))
        return publish(request)

    posting(derives)()
    settings.IDEMPOTENCY |= {"ENABLED": False}
    posting(derives)()
    assert (len(keys), len(set(keys))) == (2, 1)


@pytest.mark.django_db(transaction=True)
def test_an_open_transaction_is_refused() -> None:
    message = (
        "backend='events' was reached inside a transaction of database 'default'.*@transaction.non_atomic_requests"
    )
    with transaction.atomic(), pytest.raises(IdempotencyConfigurationError, match=message):
        posting()()
    assert RUNS == []


@pytest.mark.django_db(transaction=True)
def test_under_atomic_requests_the_view_opts_out_itself(atomic_requests: None, settings: Any) -> None:
    """Nothing is taken over: a request that passes through has Django's transaction."""
    told = []

    def looks(request: Any) -> HttpResponse:
        told.append(connection.in_atomic_block)
        return HttpResponse()

    protected = idempotent(**OPTIONS)(looks)
    urls: Any = ModuleType("urls_of_backends")
    urls.urlpatterns = [
        path("in", protected),
        path("out", transaction.non_atomic_requests(idempotent(**OPTIONS)(looks))),
    ]
    settings.ROOT_URLCONF = urls
    client, keyed = Client(), {"headers": {"Idempotency-Key": "k"}}
    with pytest.raises(IdempotencyConfigurationError, match="inside a transaction of database 'default'"):
        client.post("/in", **keyed)
    client.get("/in")
    client.get("/out")
    assert (client.post("/out", **keyed).status_code, told) == (200, [True, False, False])


@pytest.mark.django_db
def test_the_transaction_of_a_test_case_is_not_the_callers() -> None:
    assert posting()().status_code == 201


@pytest.mark.django_db
def test_with_debug_a_write_is_warned_about(settings: Any) -> None:
    """A retry would do it again. Reading is harmless."""
    settings.DEBUG = True
    posting(lambda request: HttpResponse(Order.objects.count()))(key="reads")
    with pytest.warns(RuntimeWarning, match=r"^A view with backend= changed data: 'INSERT INTO"):
        posting(lambda request: HttpResponse(Order.objects.create().pk))()


# --- without HTTP


def test_a_consumer_runs_once() -> None:
    """The work gets an operation only if it asks for one."""

    def asks(operation: Any) -> str | None:
        return operation.key

    told = {"scope": "s", "key": "k", "backend": "events", "lease": 30}
    results = [run_once(asks, operation="o", **told) for _ in range(2)]
    assert [(result.value, result.replayed) for result in results] == [("k", False), ("k", True)]
    consume = once(scope="s", key=str, backend="events", lease=30)(module_level)
    assert [consume(7), consume(7), consume(8)] == [7, 7, 8]
    assert RUNS == [7, 8]


def module_level(event: int) -> int:
    RUNS.append(event)
    return event


def test_a_consumer_is_told_that_nothing_ran() -> None:
    FaultyBackend.plan = {0: no_answer}
    with pytest.raises(StoreBusy):
        run_once(print, scope="s", key="k", backend="events", lease=30, operation="o")


def test_a_result_that_is_too_long_is_not_run_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The value is lost, and no legal one takes its place."""
    monkeypatch.setattr(FaultyBackend, "max_bytes", 1000)
    told = {"scope": "s", "key": "k", "backend": "events", "lease": 30, "operation": "o"}
    assert len(run_once(lambda: RUNS.append(1) or "x" * 900, **told).value) == 900
    with pytest.raises(ResultLost, match=r"^o with key 'k' has run.*Return less, such as an id"):
        run_once(lambda: RUNS.append(2), **told)
    assert RUNS == [1]
