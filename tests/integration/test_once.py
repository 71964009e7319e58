"""`run_once`: the same promises without HTTP."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from functools import partial
from typing import Any
from uuid import UUID

import pytest
from django.db import transaction
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.urls import path

from django_idempotency import (
    IdempotencyConfigurationError,
    OperationInProgress,
    PayloadMismatch,
    Result,
    idempotent,
    once,
    run_once,
)
from django_idempotency.engine.protocol.key_syntax import InvalidKey
from django_idempotency.models import IdempotencyKey
from tests.shopapp.models import Order
from tests.works import RUNS, breaks, place

pytestmark = pytest.mark.django_db
NOON = datetime(2026, 11, 22, 12, 0, 0)


@pytest.fixture(autouse=True)
def _clean() -> None:
    RUNS.clear()


def nested() -> Any:
    return run_once(place, scope="inner", key="1").replayed


class TestAtomic:
    def test_the_work_runs_once(self) -> None:
        """Later calls get the result: here a model instance, fetched again."""
        first = run_once(place, scope="s", key="k")
        second = run_once(place, scope="s", key="k")
        assert (first, second) == (Result(first.value, replayed=False), Result(first.value, replayed=True))
        assert isinstance(second.value, Order)
        assert (len(RUNS), Order.objects.count()) == (1, 1)
        row = IdempotencyKey.objects.get()
        assert (row.scope, row.operation, row.key, row.status) == ("s", "tests.works.place", "k", "completed")

    @pytest.mark.parametrize("payloads", [({"a": 1}, {"a": 2}), (b"1", b"2"), ([1], ["1"]), ("1", b"1")])
    def test_another_payload_is_a_named_exception(self, payloads: tuple[Any, Any]) -> None:
        """The key was mixed up; nothing runs."""
        run_once(place, scope="s", key="k", payload=payloads[0])
        with pytest.raises(PayloadMismatch, match=r"tests\.works\.place with key 'k' was used before"):
            run_once(place, scope="s", key="k", payload=payloads[1])
        assert run_once(place, scope="s", key="k", payload=payloads[0]).replayed is True
        assert len(RUNS) == 1

    @pytest.mark.parametrize(
        ("payload", "fingerprint"),
        [
            ({"b": [1, "ä"], "a": Decimal("1.10")}, "4e684364fad3ff23bfa66980aa869dd36cac95dcca7e966828e7c22fe60a752b"),
            (
                {"at": NOON.replace(microsecond=123_000, tzinfo=UTC)},
                "10195b9d565115a3fe0f567587b732efbc38afd4553e6e3bb0cf264f4f565feb",
            ),
            (b"bytes", "4fe7aa7b3446d27644ddcb6096ef24efc8b9f19431a9f53b73ad265b5fb59cf4"),
        ],
    )
    def test_the_fingerprint_stays_the_same_from_release_to_release(self, payload: Any, fingerprint: str) -> None:
        """A retry across an upgrade must not be refused."""
        run_once(place, scope="s", key="k", payload=payload)
        assert bytes(IdempotencyKey.objects.get().fingerprint).hex() == fingerprint

    @pytest.mark.parametrize("cut", [NOON, NOON.replace(tzinfo=UTC), NOON.time()])
    def test_payloads_that_differ_by_a_microsecond_are_two(self, cut: Any) -> None:
        """Django's encoder cuts times to milliseconds."""
        run_once(place, scope="s", key="k", payload={"at": cut.replace(microsecond=123_456)})
        assert run_once(place, scope="s", key="k", payload={"at": cut.replace(microsecond=123_456)}).replayed is True
        with pytest.raises(PayloadMismatch):
            run_once(place, scope="s", key="k", payload={"at": cut.replace(microsecond=123_457)})

    def test_payloads_are_compared_by_value(self) -> None:
        """The order of names does not matter, and no payload is compared with none."""
        run_once(place, scope="s", key="k", payload={"a": 1, "b": 2})
        assert run_once(place, scope="s", key="k", payload={"b": 2, "a": 1}).replayed is True
        assert run_once(place, scope="s", key="k").replayed is True

    def test_the_same_key_inside_itself_is_in_progress(self) -> None:
        """It would never end."""

        def work() -> Any:
            return run_once(work, scope="s", key="k", operation="o").value

        with pytest.raises(OperationInProgress, match="o with key 'k' is being run right now") as raised:
            run_once(work, scope="s", key="k", operation="o")
        assert raised.value.retry_after == 1

    def test_it_joins_the_callers_transaction(self) -> None:
        """Rolled back with it, the key is free again."""

        def outer() -> None:
            with transaction.atomic():
                run_once(place, scope="s", key="k")
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            outer()
        assert (Order.objects.count(), IdempotencyKey.objects.count()) == (0, 0)

    def test_a_failure_inside_the_callers_transaction_spares_it(self) -> None:
        """A savepoint: what the caller wrote stays."""
        with transaction.atomic():
            Order.objects.create(reference="the caller's")
            with pytest.raises(ValueError, match="it broke"):
                run_once(breaks, scope="s", key="k")
        assert Order.objects.get().reference == "the caller's"


class TestMistakes:
    @pytest.mark.parametrize("work", [lambda: 1, partial(place), type("Callable", (), {"__call__": place})()])
    def test_work_without_a_name_needs_one(self, work: Any) -> None:
        """Two lambdas could be taken for each other, and the second would never run."""
        with pytest.raises(IdempotencyConfigurationError, match='Pass operation="…"'):
            run_once(work, scope="s", key="k")

    @pytest.mark.parametrize("key", ["", "a b", "x" * 256, "ünï", None, True, 5.0])
    def test_bad_keys(self, key: Any) -> None:
        """Named, before anything is asked of the database."""
        with pytest.raises(InvalidKey, match="key="):
            run_once(place, scope="s", key=key)
        assert RUNS == []

    @pytest.mark.parametrize("key", [17, UUID("8e03978e-40d5-43dd-bc93-6894a57f9324")])
    def test_an_int_or_a_uuid_stands_for_its_text(self, key: Any) -> None:
        """A primary key can be the key of a task."""
        results = [run_once(place, scope="s", key=sent) for sent in (key, str(key))]
        assert [result.replayed for result in results] == [False, True]

    @pytest.mark.parametrize("options", [{"scope": "", "key": len}, {"scope": "s", "key": "k"}])
    def test_once_says_what_is_missing(self, options: Any) -> None:
        """Python itself refuses `once` without parentheses, without a scope or without a key."""
        with pytest.raises(IdempotencyConfigurationError, match="needs to know the owner and the key"):
            once(**options)
        with pytest.raises(TypeError, match="positional argument"):
            once(place)  # type: ignore[call-arg, misc]

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"scope": ""}, "scope='': give a non-empty str"),
            ({"required": False}, "'required' is no option without a request. Possible are: ttl, wait"),
            ({"payload": object()}, "is neither bytes nor JSON"),
            ({"ttl": 0}, "ttl=0"),
            ({"on_abandoned": "hold"}, "is about leased mode"),
            ({"using": "nowhere"}, "nowhere"),
        ],
    )
    def test_bad_options(self, options: dict[str, Any], message: str) -> None:
        """With what to give instead."""
        with pytest.raises(Exception, match=message):
            run_once(place, **{"scope": "s", "key": "k", **options})
        assert RUNS == []


@pytest.mark.parametrize("lease", [None, 60])
def test_in_a_transaction_that_is_broken_django_says_so(lease: int | None) -> None:
    """Nothing is claimed, and nothing runs."""
    with transaction.atomic():
        transaction.set_rollback(True)
        with pytest.raises((transaction.TransactionManagementError, IdempotencyConfigurationError)):
            run_once(place, scope="s", key="k", lease=lease)
    assert RUNS == []


@idempotent
def protected(request: HttpRequest) -> HttpResponse:
    """Handles an event that may also come by another way."""
    result = run_once(place, scope="events", key=request.headers["X-Event"])
    if request.headers.get("X-Fail"):
        raise ValueError("the view fails")
    return JsonResponse({"order": result.value.pk, "replayed": result.replayed})


urlpatterns = [path("events", protected)]


@pytest.mark.urls("tests.integration.test_once")
class TestInsideAProtectedView:
    def test_each_key_is_its_own(self, post: Any) -> None:
        """Two requests about one event: two keys of requests, one order."""
        answers = [post("/events", key=f"r{number}", headers={"X-Event": "e1"}) for number in (1, 2, 1)]
        assert [answer.json()["replayed"] for answer in answers] == [False, True, False]
        assert [answer.headers["Idempotency-Replayed"] for answer in answers] == ["false", "false", "true"]
        assert (len(RUNS), Order.objects.count()) == (1, 1)

    def test_they_are_rolled_back_together(self, post: Any) -> None:
        """The view fails after the work: neither key is used up."""
        with pytest.raises(ValueError, match="the view fails"):
            post("/events", headers={"X-Event": "e1", "X-Fail": "1"})
        assert (Order.objects.count(), IdempotencyKey.objects.count()) == (0, 0)
        assert post("/events", headers={"X-Event": "e1"}).json()["replayed"] is False
