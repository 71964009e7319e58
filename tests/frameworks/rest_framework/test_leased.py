"""Leased mode under the REST framework."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("rest_framework")

from django.db import IntegrityError, connection
from django.shortcuts import get_object_or_404
from django.urls import include, path
from rest_framework.decorators import api_view
from rest_framework.exceptions import APIException, ValidationError
from rest_framework.response import Response
from rest_framework.views import APIView, exception_handler

from django_idempotency import Idempotency, IdempotencyConfigurationError, get_operation, idempotent
from django_idempotency.maintenance import half_done, in_doubt
from django_idempotency.models import IdempotencyKey, IdempotencyStep
from django_idempotency.rest_framework import IdempotencyMixin
from django_idempotency.testing import create_key
from tests.http import replayed
from tests.shopapp.models import Line, Order
from tests.views import view_class
from tests.works import commit

CALLS: list[str] = []


class Declined(APIException):
    status_code = 402
    default_detail = "The card was declined."


def charge(data: Any, key: str) -> str:
    CALLS.append(key)
    if data.get("charge") == "raises":
        raise Declined
    return key


def charge_and_order(request: Any) -> Response:
    operation = get_operation(request)
    assert request.idempotency is operation
    charged = operation.call("charge", charge, request.data, operation.derive_key("charge"))
    if request.data.get("after") == "rolled back":
        operation.write("order", get_object_or_404, Order, reference="gone")
    if request.data.get("after") == "refused at COMMIT":
        operation.write("line", Line.objects.create, order_id=2_000_000_000)
    order = operation.write("order", Order.objects.create, reference=charged)
    return Response({"order": order.pk, "attempt": operation.attempt, "atomic": connection.in_atomic_block}, 201)


class Pay(view_class(IdempotencyMixin, APIView, post=charge_and_order)):
    idempotency = Idempotency(lease=60)

    def get_exception_handler(self) -> Callable[..., Any]:
        """As projects have it: a row that cannot be is a conflict."""

        def handler(error: Exception, context: Any) -> Any:
            return Response(status=409) if isinstance(error, IntegrityError) else exception_handler(error, context)

        return handler


RECONCILE: list[Callable[[Any], Any]] = []


@api_view(["POST"])
@idempotent(
    operation="POST reconciled", lease=60, on_abandoned="hold", reconcile=lambda operation: RECONCILE[0](operation)
)
def reconciled(request: Any) -> Response:
    """A charge that times out at first, and then a refusal."""
    operation = get_operation(request)
    operation.call("charge", charge, request.data, "key")
    raise ValidationError({"in_doubt": operation.in_doubt})


@api_view(["POST"])
@idempotent(lease=60)
def write(request: Any) -> Response:
    operation = get_operation(request)
    if request.data.get("after"):
        operation.write("first", Order.objects.create, reference="first")
    operation.write("order", get_object_or_404, Order, reference="gone")
    raise AssertionError


@api_view(["POST"])
@idempotent(lease=60, in_progress_status=202)
def poll(request: Any) -> Response:
    return Response(status=201)


def half() -> None:
    Order.objects.create(reference="before")
    commit()
    raise Declined


@api_view(["POST"])
@idempotent(lease=60)
def commits(request: Any) -> Response:
    """A write that commits in the middle, and is then refused."""
    try:
        get_operation(request).write("order", half)
    except Declined:
        if not request.data["caught"]:
            raise
    return Response(status=402)


urlpatterns = [
    path("pay", Pay.as_view()),
    path("write", write),
    path("commits", commits),
    path("reconciled", reconciled),
    path("poll", poll),
    path("status/", include("django_idempotency.urls")),
]
pytestmark = [pytest.mark.django_db, pytest.mark.urls("tests.frameworks.rest_framework.test_leased")]


@pytest.fixture(autouse=True)
def _clean() -> None:
    CALLS.clear()
    RECONCILE.clear()


def test_an_error_of_a_write_is_no_answer_after_another_write(post: Any) -> None:
    """It would hide what the first one has written. Each retry goes on behind that one."""
    answers = [post("/write", {"after": "a write"}) for _ in range(2)]
    assert [(answer.status_code, replayed(answer)) for answer in answers] == [(404, "false")] * 2
    assert (IdempotencyKey.objects.get().status, Order.objects.count()) == ("failed", 1)


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(("after", "status"), [("rolled back", 404), ("refused at COMMIT", 409)])
def test_an_error_of_a_write_is_no_answer_after_a_call(post: Any, after: str, status: int) -> None:
    """An answer that is kept would hide the charge. PostgreSQL and SQLite check a foreign key at COMMIT."""
    answers = [post("/pay", {"after": after}) for _ in range(2)]
    assert [(answer.status_code, replayed(answer)) for answer in answers] == [(status, "false")] * 2
    assert (len(CALLS), half_done().count()) == (1, 1)


def test_an_exception_out_of_the_first_write_is_an_answer(post: Any) -> None:
    """Nothing has been done before it, so nothing is hidden."""
    answers = [post("/write") for _ in range(2)]
    assert [(answer.status_code, replayed(answer)) for answer in answers] == [(404, "false"), (404, "true")]


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("caught", [False, True])
def test_a_refusal_does_not_hide_what_a_write_has_committed(post: Any, caught: bool) -> None:
    """The write is in doubt, and a person is asked."""
    assert [post("/commits", {"caught": caught}).status_code for _ in range(2)] == [402, 409]
    assert (in_doubt().count(), Order.objects.count()) == (1, 1)


def test_an_exception_out_of_a_call_is_no_answer(post: Any) -> None:
    """Whatever its status: it is not known whether the card was charged, so the key fails with the call in doubt."""
    assert post("/pay", {"charge": "raises"}).status_code == 402
    row = IdempotencyKey.objects.get()
    assert (row.status, row.last_error) == ("failed", f"{__name__}.Declined: line 41 of {__name__}.charge")
    assert IdempotencyStep.objects.get().finished_at is None
    assert post("/pay", {"charge": "raises"}).status_code == 402
    assert (len(CALLS), len(set(CALLS))) == (2, 1)


def test_a_duplicate_that_is_told_where_to_look_has_data(post: Any, key: str) -> None:
    """As each answer of the framework has: tests and middlewares read it."""
    create_key(key, operation="POST poll", status="in_progress")
    answer = post("/poll")
    assert (answer.status_code, answer.data["code"], answer.json()) == (202, "in-progress", answer.data)


def test_what_reconcile_returns_is_rendered_as_the_views_own_answer(post: Any) -> None:
    RECONCILE.append(lambda operation: Response({"paid": operation.in_doubt}, status=201))
    assert post("/reconciled", {"charge": "raises"}).status_code == 402
    answers = [post("/reconciled", {"charge": "raises"}) for _ in range(2)]
    assert [(answer.status_code, answer.json()) for answer in answers] == [(201, {"paid": ["charge"]})] * 2
    assert [replayed(answer) for answer in answers] == ["false", "true"]


def test_what_reconcile_returned_is_not_blamed_on_the_view(post: Any) -> None:
    RECONCILE.append(lambda operation: "paid")
    assert post("/reconciled", {"charge": "raises"}).status_code == 402
    with pytest.raises(IdempotencyConfigurationError, match=r"^reconcile returned 'paid'; return an HttpResponse"):
        post("/reconciled", {"charge": "raises"})


@pytest.mark.parametrize("another_call", [False, True])
def test_a_refusal_is_final_as_soon_as_reconcile_has_left_no_doubt(post: Any, another_call: bool) -> None:
    """The view sees the steps as `reconcile` has left them, and so does the judgement of its answer."""

    def look_up(operation: Any) -> None:
        operation.call("charge", lambda: "found")
        if another_call:
            with pytest.raises(Declined):
                operation.call("void", charge, {"charge": "raises"}, "void")

    RECONCILE.append(look_up)
    assert post("/reconciled", {"charge": "raises"}).status_code == 402
    answer = post("/reconciled", {"charge": "raises"})
    assert (answer.status_code, answer.json()) == (400, {"in_doubt": ["void"] if another_call else []})
    assert IdempotencyKey.objects.get().status == ("failed" if another_call else "completed")
