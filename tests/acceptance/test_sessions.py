"""docs/views.md, sentence by sentence: real sessions in the database, saved by Django's middleware."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.contrib import messages
from django.contrib.sessions.backends import db
from django.contrib.sessions.models import Session
from django.http import HttpRequest, HttpResponse
from django.test import Client, override_settings
from django.urls import path

from django_idempotency import idempotent
from tests.shopapp.models import Order
from tests.views import answers

KEY = {"Idempotency-Key": "one"}
pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def shopper(client: Client) -> Client:
    session = client.session
    session["cart"] = "a book"
    session.save()
    return client


def cart() -> Any:
    return Session.objects.get().get_decoded().get("cart")


def dies_after_the_view(get_response: Callable[[HttpRequest], HttpResponse]) -> Any:
    """The worker dies before the middleware above saves the session."""

    def middleware(request: HttpRequest) -> HttpResponse:
        get_response(request)
        raise SystemExit

    return middleware


def first_click_meanwhile(get_response: Callable[[HttpRequest], HttpResponse]) -> Any:
    """Another request with the same session and key is done between this request's load of its session and its view."""

    def middleware(request: HttpRequest) -> HttpResponse:
        request.session.get("cart")
        if "X-Changes" in request.headers:
            request.session["seen"] = True
        if "X-Second" in request.headers:
            other = Client(headers=KEY)
            other.cookies.load(request.headers["Cookie"])
            assert other.post(request.path).status_code == 201
        return get_response(request)

    return middleware


def below_sessions(middleware: Callable[..., Any]) -> Any:
    from django.conf import settings

    return [*settings.MIDDLEWARE, f"{__name__}.{middleware.__name__}"]


@idempotent
def forgets_to_save(request: HttpRequest) -> HttpResponse:
    Order.objects.create(reference=request.session.pop("cart"))
    return HttpResponse(status=201)


@pytest.mark.parametrize(("saved", "left"), [(True, None), (False, "a book")])
def test_a_session_that_the_view_saves_commits_with_the_order(
    saved: bool, left: Any, shopper: Client, run: Any, serve: Any
) -> None:
    """And without it, the retry leaves the cart full."""
    view = run("docs/views.md", "shop/checkout.py").check_out if saved else forgets_to_save
    serve(path("check-out/", view))
    with override_settings(MIDDLEWARE=below_sessions(dies_after_the_view)), pytest.raises(SystemExit):
        shopper.post("/check-out/", headers=KEY)

    retrying = Client()  # with the usual middleware, and the same session
    retrying.cookies = shopper.cookies
    retry = retrying.post("/check-out/", headers=KEY)

    assert (retry.status_code, retry["Idempotency-Replayed"]) == (201, "true")
    assert (Order.objects.count(), cart()) == (1, left)


def test_a_check_in_dispatch_does_not_hide_the_stored_answer(
    shopper: Client, run: Any, serve: Any, admin_user: Any
) -> None:
    """A function that calls the whole view is protected. A caller who has logged out gets no replay."""
    serve(path("check-out/", run("docs/views.md", "shop/class_checkout.py").check_out))
    shopper.force_login(admin_user)

    first, retry = (shopper.post("/check-out/", headers=KEY) for _ in range(2))

    assert (first.status_code, retry.status_code, retry["Idempotency-Replayed"]) == (201, 201, "true")
    assert (first.content, Order.objects.count(), cart()) == (retry.content, 1, None)
    assert "Cookie" in retry["Vary"]  # the answer still depends on the session that was read
    shopper.logout()
    assert shopper.post("/check-out/", headers=KEY).status_code == 302


@override_settings(SESSION_SAVE_EVERY_REQUEST=True)
@pytest.mark.parametrize(("headers", "left"), [({}, None), ({"X-Changes": "1"}, "a book")])
def test_a_duplicate_does_not_save_the_session_that_it_loaded_before(
    headers: dict[str, str], left: Any, shopper: Client, run: Any, serve: Any
) -> None:
    """Unless a middleware has changed that session."""
    serve(path("check-out/", run("docs/views.md", "shop/checkout.py").check_out))

    with override_settings(MIDDLEWARE=below_sessions(first_click_meanwhile)):
        second = shopper.post("/check-out/", headers={**KEY, **headers, "X-Second": "1"})

    assert (second.status_code, second["Idempotency-Replayed"], second["Vary"]) == (201, "true", "Cookie")
    assert (Order.objects.count(), cart()) == (1, left)


class SessionStore(db.SessionStore):
    """With an argument of its own, as in django-user-sessions. Django signs a session with the name of the class."""

    def __init__(self, session_key: str | None, user_agent: str) -> None:
        super().__init__(session_key)
        self.user_agent = user_agent


def test_a_duplicate_gets_a_session_of_any_engine(shopper: Client, rf: Any) -> None:
    """The request's own store is read again."""
    view, session = idempotent(answers()), shopper.session
    for bought in (False, True):
        request = rf.post("/check-out/", headers=KEY)
        request.session = SessionStore(session.session_key, "Firefox")
        assert request.session["cart"] == "a book"
        if bought:
            session["cart"] = "a pen"
            session.save()
        view(request)
    assert (request.session["cart"], request.session.user_agent) == ("a pen", "Firefox")


@idempotent
def says_so(request: HttpRequest) -> HttpResponse:
    messages.success(request, "ordered")
    response = HttpResponse(status=201)
    response.set_cookie("last_order", "59")
    return response


def test_messages_and_cookies_of_the_first_answer_are_not_replayed(client: Client, serve: Any) -> None:
    """A stored cookie may be a credential."""
    serve(path("order/", says_so))

    first, retry = (client.post("/order/", headers=KEY) for _ in range(2))

    assert retry["Idempotency-Replayed"] == "true"
    assert (set(first.cookies), set(retry.cookies)) == ({"last_order", "messages"}, set())


def shows_messages(request: HttpRequest) -> HttpResponse:
    return HttpResponse(", ".join(str(message) for message in messages.get_messages(request)))


@override_settings(MESSAGE_STORAGE="django.contrib.messages.storage.session.SessionStorage")
@pytest.mark.parametrize("dies", [False, True])
def test_a_message_in_the_session_waits_for_the_next_page(shopper: Client, serve: Any, dies: bool) -> None:
    """The first request has saved it, unless its worker died before that."""
    serve(path("order/", says_so), path("next/", shows_messages))
    if dies:
        with override_settings(MIDDLEWARE=below_sessions(dies_after_the_view)), pytest.raises(SystemExit):
            shopper.post("/order/", headers=KEY)
    else:
        shopper.post("/order/", headers=KEY)
    retrying = Client()
    retrying.cookies = shopper.cookies

    assert retrying.post("/order/", headers=KEY)["Idempotency-Replayed"] == "true"

    assert [retrying.get("/next/").content for _ in range(2)] == [b"" if dies else b"ordered", b""]


def test_a_link_that_expires_is_replayed_as_it_was(client: Client, serve: Any) -> None:
    """A page that makes the link isn't stored: it makes another one for each request."""
    made = iter(range(10))

    def link(request: HttpRequest) -> HttpResponse:
        return HttpResponse(f"/file?token={next(made)}")

    serve(path("order/", idempotent(link)), path("file/", link))
    assert [client.post("/order/", headers=KEY).content for _ in range(2)] == [b"/file?token=0"] * 2
    assert [client.get("/file/").content for _ in range(2)] == [b"/file?token=1", b"/file?token=2"]
