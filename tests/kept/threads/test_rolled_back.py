"""A deadlock in the view has rolled back the claim too. What is told then depends on what others did meanwhile."""

from __future__ import annotations

from threading import Event
from typing import Any

import pytest
from django.db import DatabaseError, OperationalError, connection, transaction
from django.http import HttpRequest, HttpResponse
from django.test import RequestFactory

from django_idempotency import idempotent
from django_idempotency.exceptions import ClaimLost
from django_idempotency.models import IdempotencyKey
from tests.servers import DEADLINE
from tests.shopapp.models import Order
from tests.views import creates

pytestmark = [pytest.mark.only_on("mysql"), pytest.mark.django_db(transaction=True)]
DEADLOCK = 1213


def send(view: Any) -> HttpResponse:
    return idempotent(operation="order")(view)(RequestFactory().post("/", headers={"Idempotency-Key": "one"}))


create_order = creates(reference="order")


@pytest.fixture
def deadlocking(in_threads: Any) -> Any:
    """Run a view that ends in a deadlock, beside the transaction that wins. After the deadlock, `meanwhile` runs."""
    first, second = Order.objects.create(reference="first"), Order.objects.create(reference="second")
    view_has_first, rival_has_second = Event(), Event()

    def lock(order: Order) -> None:
        Order.objects.filter(pk=order.pk).update(amount=1)

    def run(meanwhile: Any) -> HttpResponse:
        def deadlocks(request: HttpRequest) -> HttpResponse:
            lock(first)
            view_has_first.set()
            assert rival_has_second.wait(DEADLINE), "the rival never had its lock"
            try:
                lock(second)
            except DatabaseError:
                meanwhile()
                raise
            raise AssertionError("the rival was to win")

        def race(number: int) -> Any:
            if number == 0:
                try:
                    return send(deadlocks)
                except OperationalError as error:
                    return error
            with transaction.atomic():
                # InnoDB rolls back the transaction that has changed fewer rows.
                Order.objects.bulk_create([Order(reference="rival") for _ in range(100)])
                lock(second)
                rival_has_second.set()
                assert view_has_first.wait(DEADLINE), "the view never had its lock"
                lock(first)
            return None

        return in_threads(2, race)[0]

    return run


def test_a_duplicate_that_was_faster_is_replayed(deadlocking: Any, in_threads: Any) -> None:
    """The deadlock freed the key, so the duplicate ran. There is one order, and both clients hear of that one."""
    answers: list[HttpResponse] = []
    replay = deadlocking(lambda: answers.extend(in_threads(1, lambda number: send(create_order))))
    assert (replay.status_code, replay["Idempotency-Replayed"]) == (201, "true")
    assert replay.content == answers[0].content
    assert Order.objects.filter(reference="order").count() == 1


def test_without_a_duplicate_the_deadlock_is_the_views_error(deadlocking: Any) -> None:
    """The key is free, and the next retry runs."""
    error = deadlocking(lambda: None)
    assert error.args[0] == DEADLOCK
    assert not IdempotencyKey.objects.exists()
    assert send(create_order).status_code == 201


def test_a_deadlock_that_django_does_not_notice_is_named() -> None:
    """A caught error of a SELECT … FOR UPDATE leaves Django's transaction as it is. Nothing of the view is kept."""

    def loses_its_transaction(request: HttpRequest) -> HttpResponse:
        Order.objects.create(reference="before")
        with connection.cursor() as cursor:
            cursor.execute("ROLLBACK")  # as a deadlock does
        return create_order(request)

    with pytest.raises(ClaimLost, match="caught a deadlock"):
        send(loses_its_transaction)
    assert not Order.objects.exists()
    assert send(create_order).status_code == 201


def test_a_deadlock_of_a_callback_after_commit_propagates() -> None:
    """The callback's own work failed, and the order was committed: no answer may hide that error."""

    def callback() -> None:
        raise OperationalError(DEADLOCK, "Deadlock found when trying to get lock")

    def fails_after_the_commit(request: HttpRequest) -> HttpResponse:
        transaction.on_commit(callback)
        return create_order(request)

    with pytest.raises(OperationalError):
        send(fails_after_the_commit)
    assert send(fails_after_the_commit)["Idempotency-Replayed"] == "true"
    assert connection.get_autocommit()
