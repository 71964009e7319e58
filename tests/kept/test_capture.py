"""What of a response is kept."""

from __future__ import annotations

import json
from collections.abc import Callable
from enum import Enum
from io import BytesIO
from typing import Any

import pytest
from django.http import FileResponse, HttpRequest, HttpResponse, HttpResponseRedirect

from django_idempotency import get_operation, idempotent
from django_idempotency.engine.conf import resolve
from django_idempotency.engine.protocol.outcomes import Snapshot
from django_idempotency.engine.request.responses import capture, restore
from django_idempotency.models import IdempotencyKey
from tests.http import replayed
from tests.shopapp.models import Order
from tests.views import answers, creates, paths

Post = Callable[..., Any]
pytestmark = [pytest.mark.django_db, pytest.mark.urls("tests.kept.test_capture")]


def referred(request: HttpRequest, order: Order) -> HttpResponse:
    get_operation(request).refer_to(order)
    return HttpResponse("secret")


def mirror(request: HttpRequest, order: Order) -> HttpResponse:
    """Answer with the bytes and headers that the request asks for."""
    response = HttpResponse(request.body, content_type=request.headers.get("X-Type", "text/plain"))
    for name, value in json.loads(request.headers.get("X-Headers", "{}")).items():
        response[name] = value
    response.set_cookie("secret", "value")
    if reason := request.headers.get("X-Reason"):
        response.reason_phrase = reason
    return response


def empty(request: HttpRequest, order: Order) -> HttpResponse:
    response = HttpResponse(status=204)
    del response["Content-Type"]
    return response


class Status(int, Enum):
    CREATED = 201


def enumerated(request: HttpRequest, order: Order) -> HttpResponse:
    response = HttpResponse(order.pk)
    response.status_code = Status.CREATED
    return response


def located(order: Order) -> dict[str, str]:
    return {"Location": f"/orders/{order.pk}"}


RESPONSES: dict[str, Callable[..., Any]] = {
    "mirror": mirror,
    "empty": empty,
    "enumerated": enumerated,
    "moved": lambda request, order: HttpResponseRedirect(f"/target?id={order.pk}"),
    "download": lambda request, order: FileResponse(BytesIO(b"x"), status=201, headers=located(order)),
    "too_large": lambda request, order: HttpResponse(b"0123456789" * 500_000, headers=located(order)),
    "referred": referred,
    "secret": lambda request, order: HttpResponse("secret", status=201, headers=located(order)),
}
urlpatterns = paths(
    target=answers(),
    **{
        name: idempotent(store_body=name not in ("secret", "referred"))(creates(then=response))
        for name, response in RESPONSES.items()
    },
)


@pytest.mark.parametrize("stored", [False, True])
def test_a_cookie_is_a_credential(post: Post, settings: Any, stored: bool) -> None:
    """It is neither stored nor replayed, also if the view has set the header by hand. STORE_COOKIES opts in."""
    settings.IDEMPOTENCY = {"STORE_COOKIES": stored}
    by_hand = {"X-Headers": json.dumps({"Set-Cookie": "byhand=1; Path=/", "X-Other": "kept"})}
    first, second = (post("/mirror", headers=by_hand) for _ in range(2))
    assert second.headers["X-Other"] == "kept"
    assert (first.headers["Set-Cookie"], set(first.cookies)) == ("byhand=1; Path=/", {"secret"})
    assert "Set-Cookie" not in second.headers
    assert set(second.cookies) == ({"secret", "byhand"} if stored else set())
    kept = IdempotencyKey.objects.get().headers or ""
    assert [text in kept for text in ("secret=value", "byhand=1")] == [stored] * 2


@pytest.mark.parametrize(
    ("name", "value", "attributes"),
    [
        ("a", "b", {"path": "/münchen", "secure": True, "httponly": True, "samesite": "Lax", "domain": "x.org"}),
        ("a", 'semi; "quoted"==', {"path": "/my path", "max_age": 0}),
        ("$a", "", {"path": ""}),
    ],
)
def test_a_stored_cookie_keeps_what_a_browser_would_not_send(name: str, value: str, attributes: Any) -> None:
    """Its attributes, and a name or path that Python does not read from a request."""
    first = HttpResponse()
    first.set_cookie(name, value, **attributes)
    headers = tuple(("Set-Cookie", cookie.OutputString()) for cookie in first.cookies.values())
    second = restore(Snapshot(status_code=200, headers=headers, body=b""))
    assert (second.cookies.output(), second.cookies[name].value) == (first.cookies.output(), value)


def test_a_cookie_set_by_hand_that_python_refuses_stays_a_header() -> None:
    """It is replayed as the view has written it."""
    headers = (("Set-Cookie", "a[1]=b; Path=/; Priority=High"),)
    assert restore(Snapshot(status_code=200, headers=headers, body=b"")).headers["Set-Cookie"] == headers[0][1]


@pytest.mark.parametrize(
    ("content_type", "body"),
    [
        ("application/json", b'{ "a" :\t1 ,\r\n"b":[ ] }\n\n'),
        ("application/octet-stream", bytes(range(256))),
        ("text/plain; charset=latin-1", "é\x00".encode("latin-1")),
        ("text/plain", b""),
    ],
)
def test_every_byte_is_replayed(post: Post, content_type: str, body: bytes) -> None:
    """Bodies are bytes."""
    first, second = (
        post("/mirror", body, content_type="application/octet-stream", headers={"X-Type": content_type})
        for _ in range(2)
    )
    assert first.content == second.content == body
    assert first.headers["Content-Type"] == second.headers["Content-Type"] == content_type
    assert replayed(second) == "true"


def test_a_replayed_redirect_can_be_followed(post: Post) -> None:
    """Django's test client asks for `url`, which Django's own redirects have."""
    first, second = post("/moved"), post("/moved")
    assert (second.status_code, replayed(second), second.url) == (302, "true", first.url)
    followed = post("/moved", follow=True)
    assert followed.redirect_chain == [(f"/target?id={Order.objects.get().pk}", 302)]


def test_every_header_is_replayed_but_hop_by_hop_ones_and_cookies(post: Post) -> None:
    """RFC 9110 section 7.6.1, and a cookie is a credential."""
    hops = {"Connection": "close, X-Hop,X-Too", "X-Hop": "1", "X-Too": "1", "TE": "gzip"}
    sent = {"ETag": '"1"', "X-Many": "a, b", "Location": "/x", **hops}
    first, second = (post("/mirror", headers={"X-Headers": json.dumps(sent), "X-Reason": "Fine"}) for _ in range(2))
    assert {k: second.headers.get(k) for k in sent} == {
        "ETag": '"1"',
        "X-Many": "a, b",
        "Location": "/x",
        "Connection": None,
        "X-Hop": None,
        "X-Too": None,
        "TE": None,
    }
    assert second.reason_phrase == "Fine"
    assert (set(first.cookies), set(second.cookies)) == ({"secret"}, set())


def test_an_answer_without_content_type_stays_without(post: Post) -> None:
    """Django's default is not added."""
    first, second = post("/empty"), post("/empty")
    assert (second.status_code, second.content, replayed(second)) == (204, b"", "true")
    assert "Content-Type" not in first.headers
    assert "Content-Type" not in second.headers


@pytest.mark.parametrize(("path", "location"), [("/too_large", True), ("/download", True)])
def test_what_is_not_stored_is_not_run_again(post: Post, path: str, location: bool) -> None:
    """A tombstone: 409, with the first Location. It is not the stored response, so it is no replay."""
    first, second = post(path), post(path)
    assert first.status_code in (200, 201)
    assert (second.status_code, replayed(second)) == (409, "false")
    assert second.json()["code"] == "response-not-stored"
    assert second.headers.get("Location") == first.headers.get("Location")
    assert ("Location" in second.headers) is location
    assert Order.objects.count() == 1


@pytest.mark.parametrize(("status", "reason", "kept"), [(200, None, False), (299, None, False), (200, "Fine", True)])
def test_only_a_reason_phrase_of_the_view_is_kept(status: int, reason: str | None, kept: bool) -> None:
    """Django's own phrase follows from the status, also for a status without a name."""
    names = [name for name, _ in capture(HttpResponse(status=status, reason=reason), resolve()).headers]
    assert (":reason" in names) is kept


def test_a_tombstone_names_the_object_that_the_view_referred_to(post: Post) -> None:
    """So that the client can look it up. `may_replay` was asked before, as for a replay."""
    post("/referred")
    assert post("/referred").json()["resource"] == {"type": "shopapp.order", "id": str(Order.objects.get().pk)}


def test_only_a_redirect_has_the_address_of_a_redirect() -> None:
    """Neither what was created or refused, nor a status that has no address."""
    address = (("Location", "/orders/1"),)
    for status, headers, has_it in [(201, address, 0), (300, address, 1), (304, (), 0), (400, address, 0)]:
        assert hasattr(restore(Snapshot(status_code=status, headers=headers, body=b"")), "url") is bool(has_it)


@pytest.mark.django_db(transaction=True)
def test_a_status_of_an_enumeration_is_its_number(post: Post) -> None:
    """Django sends the number to the client, so a view may do this."""
    assert [post("/enumerated").status_code for _ in range(2)] == [201, 201]
    assert Order.objects.count() == 1
