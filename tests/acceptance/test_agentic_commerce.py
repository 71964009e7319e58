"""Section 6 of the Agentic Commerce Protocol: its 17 rules, with the page's settings and middleware."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db.models import F
from django.http import HttpRequest, JsonResponse
from django.test import Client
from django.urls import path
from django.views.decorators.csrf import csrf_exempt

from django_idempotency import get_operation, idempotent
from django_idempotency.models import IdempotencyKey
from tests.shopapp.models import Order

pytestmark = pytest.mark.django_db(transaction=True)
PAGE, KEY, SESSIONS = "docs/agentic-commerce.md", 'opaque;"of,(ours)"', "/checkout_sessions"
Post = Callable[..., Any]


class Books:
    """What the views do, and what they have done."""

    status = 201
    charges = 0
    meanwhile: Any = None
    fails_after_charge = False


@pytest.fixture
def books() -> Books:
    return Books()


@pytest.fixture
def post(run: Any, serve: Any, settings: Any, monkeypatch: pytest.MonkeyPatch, books: Books) -> Post:
    """Send a POST of the protocol to a shop with the page's settings; other arguments are headers."""
    monkeypatch.setitem(sys.modules, "shop.agentic", run(PAGE, "shop/agentic.py"))
    given = run(PAGE, "settings.py")
    settings.MIDDLEWARE, settings.IDEMPOTENCY = given.MIDDLEWARE, given.IDEMPOTENCY

    @csrf_exempt
    @idempotent
    def create(request: HttpRequest, session: str = "") -> JsonResponse:
        order = Order.objects.create(reference=session)
        if books.status == 0:
            raise RuntimeError
        return JsonResponse({"id": order.pk, "query": request.GET.dict()}, status=books.status)

    def charge() -> int:
        books.charges += 1
        if books.meanwhile is not None:
            books.meanwhile()
        return books.charges

    @csrf_exempt
    @idempotent(lease=120)
    def complete(request: HttpRequest, session: str) -> JsonResponse:
        charged = get_operation(request).call("charge", charge)
        if books.fails_after_charge:
            raise RuntimeError
        return JsonResponse({"charged": charged})

    serve(
        path("checkout_sessions", create),
        path("checkout_sessions/<session>", create),
        path("checkout_sessions/<session>/complete", complete),
    )
    client = Client(raise_request_exception=False)

    def send(
        body: str = "{}", url: str = SESSIONS, key: str | None = KEY, kind: str = "application/json", **more: str
    ) -> Any:
        keyed = {} if key is None else {"Idempotency-Key": key}
        sent = {"Authorization": "Bearer of an agent", **keyed, **{n.replace("_", "-"): v for n, v in more.items()}}
        return client.post(url, body, content_type=kind, headers=sent)

    return send


def error(response: Any) -> tuple[int, str, str, bool]:
    """Its status, and the members of the body."""
    told = json.loads(response.content)
    return response.status_code, told["type"], told["code"], bool(told["message"])


def replayed(*responses: Any) -> list[str]:
    return [response["Idempotent-Replayed"] for response in responses]


def older(**by: int) -> None:
    IdempotencyKey.objects.update(expires_at=F("expires_at") - timedelta(**by))


def test_01_a_post_without_a_key_is_refused(post: Post) -> None:
    """Section 6.1."""
    for url in (SESSIONS, f"{SESSIONS}/7", f"{SESSIONS}/7/complete"):
        assert error(post(url=url, key=None)) == (400, "invalid_request", "idempotency_key_required", True)
    assert not Order.objects.exists()


def test_02_a_key_is_an_opaque_string_of_at_most_255_characters(post: Post) -> None:
    """Section 6.1."""
    keys = [KEY, '"abc"', "abc", "(a,b);c=:d:", "x" * 255]
    assert [post(key=key).status_code for key in keys] == [201] * 5
    assert post(key="x" * 256).status_code == 400
    assert Order.objects.count() == 5


def test_03_the_same_key_on_another_path_is_another_request(post: Post) -> None:
    """Section 6.1. Two sessions are two paths."""
    got = [post(url=url) for url in (SESSIONS, f"{SESSIONS}/7", f"{SESSIONS}/8", f"{SESSIONS}/8")]
    assert replayed(*got) == ["false", "false", "false", "true"]


def test_04_the_same_key_of_another_identity_is_another_request(post: Post) -> None:
    """Section 6.1."""
    assert replayed(post(), post(Authorization="Bearer of another agent")) == ["false", "false"]


def test_05_the_order_of_names_does_not_count(post: Post) -> None:
    """Section 6.2."""
    assert replayed(post('{"a": 1, "b": {"c": 2, "d": 3}}'), post('{"b":{"d":3,"c":2},"a":1}')) == ["false", "true"]


def test_06_numbers_are_compared_by_value(post: Post) -> None:
    """Section 6.2."""
    assert replayed(post('{"a": 1, "b": 1.5}'), post('{"a": 1.0, "b": 1.50}')) == ["false", "true"]


def test_07_headers_content_type_and_query_do_not_count(post: Post) -> None:
    """Section 6.2: the body only. What doesn't count, the view can't see."""
    first = post(url=f"{SESSIONS}?a=1", Accept_Language="en")
    again = post(url=f"{SESSIONS}?a=2", kind="application/json; profile=x", Accept_Language="de", Request_Id="2")
    third = post(kind="application/vnd.shop+json; charset=utf-8")
    assert replayed(first, again, third) == ["false", "true", "true"]
    assert first.json()["query"] == {}


def test_08_null_is_not_absent(post: Post) -> None:
    """Section 6.2."""
    assert [post('{"a": null}').status_code, post("{}").status_code] == [201, 422]


def test_09_the_order_of_a_list_counts(post: Post) -> None:
    """Section 6.2."""
    assert [post("[1, 2]").status_code, post("[2, 1]").status_code] == [201, 422]


@pytest.mark.parametrize("status", [200, 201, 404, 409, 422, 429])
def test_10_the_original_response_comes_with_its_status(post: Post, books: Books, status: int) -> None:
    """Section 6.3. Nothing runs again, and the header says so."""
    books.status = status
    first, again = post(), post()
    assert (again.status_code, again.content) == (status, first.content)
    assert replayed(first, again) == ["false", "true"]
    assert Order.objects.count() == 1


def test_11_the_key_is_echoed(post: Post, books: Books) -> None:
    """Section 3.1: of each POST, also of an error."""
    got = [post(), post(), post('{"a": 1}'), post(url="/checkout_sessions/unknown/path")]
    assert [(response.status_code, response["Idempotency-Key"]) for response in got] == [
        (201, KEY),
        (201, KEY),
        (422, KEY),
        (404, KEY),
    ]


def test_12_another_body_is_a_conflict(post: Post) -> None:
    """Section 6.4."""
    post('{"a": 1}')
    assert error(post('{"a": 2}')) == (422, "invalid_request", "idempotency_conflict", True)


def test_13_a_request_in_flight_is_told(post: Post, books: Books) -> None:
    """Section 6.4, with `Retry-After` in seconds."""
    got: list[Any] = []
    books.meanwhile = lambda: got.append(post(url=f"{SESSIONS}/7/complete"))
    assert post(url=f"{SESSIONS}/7/complete").status_code == 200
    assert [error(response) for response in got] == [(409, "invalid_request", "idempotency_in_flight", True)]
    assert int(got[0]["Retry-After"]) >= 1


def test_14_a_server_error_is_not_kept(post: Post, books: Books) -> None:
    """Section 6.5: the retry is fresh."""
    books.status = 503
    assert post().status_code == 503
    books.status = 201
    assert replayed(post(), post()) == ["false", "true"]


def test_15_a_key_is_kept_for_a_day_and_is_new_afterwards(post: Post) -> None:
    """Section 6.6, without an error."""
    first = post()
    older(hours=23, minutes=59)
    again = post()
    older(minutes=2)
    assert replayed(first, again, post('{"another": "body"}')) == ["false", "true", "false"]


def test_16_key_and_operation_commit_together(post: Post, books: Books) -> None:
    """Section 6.8: no ghost key, and no operation without its key."""
    books.status = 0
    assert post().status_code == 500
    assert not Order.objects.exists()
    books.status = 201
    assert replayed(post(), post()) == ["false", "true"]
    assert Order.objects.count() == 1


def test_17_a_retry_goes_on_from_the_recovery_point(post: Post, books: Books) -> None:
    """Section 6.8: the customer is charged once."""
    books.fails_after_charge = True
    assert post(url=f"{SESSIONS}/7/complete").status_code == 500
    books.fails_after_charge = False
    assert post(url=f"{SESSIONS}/7/complete").json() == {"charged": 1}
    assert books.charges == 1
