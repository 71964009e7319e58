"""What is not defended, as SECURITY.md says: each sentence there is true here."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from io import BytesIO
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connection, connections
from django.http import HttpRequest, HttpResponse
from django.test import Client, RequestFactory
from django.urls import path
from django.utils import timezone

from django_idempotency import Idempotency, get_operation, idempotent
from django_idempotency.engine.conf import resolve
from django_idempotency.engine.protocol.outcomes import Conflicted
from django_idempotency.engine.request.callers import scope_of
from django_idempotency.engine.request.fingerprints import fingerprint_of, payload_of
from django_idempotency.engine.request.problems import problem_of, respond
from django_idempotency.models import IdempotencyKey
from tests.at_rest import OLD
from tests.http import replayed
from tests.leases import Broken, breaks
from tests.shopapp.models import Order

Post = Callable[..., Any]
pytestmark = [pytest.mark.django_db, pytest.mark.urls(__name__)]
CHARGES: list[str] = []
SENT: list[Callable[[], None]] = []


def charge_and_send(request: HttpRequest) -> HttpResponse:
    """Charge at a gateway that remembers derived keys, and send the order to the address of this request."""
    operation = get_operation(request)
    key = operation.derive_key("charge")
    operation.call("charge", lambda: key in CHARGES or CHARGES.append(key))
    SENT.pop()() if SENT else None
    order = operation.write("order", Order.objects.create, reference=request.POST["address"])
    return HttpResponse(order.reference, status=201)


@idempotent(anonymous="refuse")
def refusing(request: HttpRequest) -> HttpResponse:
    return HttpResponse(status=201)


@idempotent(scope=lambda request: "the shop")
def merged(request: HttpRequest) -> HttpResponse:
    return HttpResponse(request.user.get_username())


@idempotent
def card(request: HttpRequest) -> HttpResponse:
    SENT.pop()()
    return HttpResponse(b"card 4242 4242", status=201)


urlpatterns = [
    path("pay", idempotent(lease=60)(charge_and_send)),
    path("pay/amount", idempotent(lease=60, fingerprint=("amount",))(charge_and_send)),
    path("refusing", refusing),
    path("merged", merged),
    path("card", card),
]
FORM = {"content_type": "application/x-www-form-urlencoded"}


@pytest.fixture(autouse=True)
def _clean() -> Iterator[None]:
    CHARGES.clear()
    SENT.clear()
    yield
    SENT.clear()


def test_one_payment_buys_two_orders_after_the_key_has_expired(post: Post) -> None:
    """The derived key is the same, and the gateway still knows it."""
    assert post("/pay", "address=a", **FORM).status_code == 201
    IdempotencyKey.objects.update(expires_at=timezone.now() - timedelta(days=1))
    assert replayed(post("/pay", "address=a", **FORM)) == "false"
    assert (len(CHARGES), Order.objects.count()) == (1, 2)


def test_a_field_outside_the_fingerprint_is_that_of_the_retry(post: Post) -> None:
    """The charge is the first request's, and what follows it the second's."""
    SENT.append(breaks)
    with pytest.raises(Broken):
        post("/pay/amount", "amount=5&address=a", **FORM)
    assert post("/pay/amount", "amount=5&address=b", **FORM).content == b"b"
    assert (len(CHARGES), Order.objects.get().reference) == (1, "b")


def test_a_scope_of_the_project_replaces_all_separation(post: Post) -> None:
    """Nothing is added to what it returns, so two users are one caller if it names neither."""
    clients = [Client(), Client()]
    for client, name in zip(clients, ("ann", "bob"), strict=True):
        client.force_login(User.objects.create(username=name))
    assert [post("/merged", client=client).content for client in clients] == [b"ann", b"ann"]


def test_two_plain_tokens_of_one_user_are_one_caller(rf: RequestFactory) -> None:
    """They name no client that could tell them apart."""
    user, scopes = User(pk=7), set()
    for token in ("Token laptop", "Bearer phone"):
        request = rf.post("/", headers={"Authorization": token})
        request.user = user
        scopes.add(scope_of(request, resolve()))
    assert scopes == {"user:auth.User:7"}


def test_refuse_accepts_any_credential(post: Post) -> None:
    """Whether it is true, nobody has asked."""
    assert post("/refusing").status_code == 403
    assert post("/refusing", headers={"Authorization": "Bearer made-up"}).status_code == 201


def test_the_page_of_a_conflict_repeats_the_form(rf: RequestFactory) -> None:
    """With the password, so that its button can send the form again. No cache keeps it."""
    request = rf.post("/", {"name": "ann", "password": "s3cret"}, headers={"Accept": "text/html"})
    page = respond(request, problem_of(Conflicted(), resolve(Idempotency())))
    assert '<input type="hidden" name="password" value="s3cret">' in page.content.decode()
    assert "no-store" in page.headers["Cache-Control"]


@pytest.mark.only_on("postgresql")
@pytest.mark.django_db(transaction=True, databases=["default", "other"])
@pytest.mark.parametrize("encrypted", [False, True])
def test_a_monitoring_role_sees_the_last_message_of_a_connection(post: Post, settings: Any, encrypted: bool) -> None:
    """It has the key while the view runs, and the stored body until the next statement. Encryption covers the body."""
    settings.IDEMPOTENCY = {"ENCRYPTION_KEYS": [OLD]} if encrypted else {}
    during: list[str] = []
    for number in range(4):  # the statement is prepared then, and its values are not cut off
        SENT.append(lambda: during.append(watched()))
        assert post("/card", key=f"secret-{number}").status_code == 201
    assert "secret-3" in during[-1]
    assert (b"card 4242 4242".hex() in watched()) is not encrypted


def watched() -> str:
    """What a role sees that may read no table."""
    with connections["other"].cursor() as cursor:
        cursor.execute("SET ROLE pg_monitor")
        cursor.execute("SELECT query FROM pg_stat_activity WHERE datname = %s", [connection.settings_dict["NAME"]])
        shown = " ".join(query for (query,) in cursor.fetchall())
        cursor.execute("RESET ROLE")
    return shown


def test_a_planted_csrf_cookie_merges_two_visitors(rf: RequestFactory) -> None:
    """Whatever sessions they have."""
    visitors: list[Any] = [rf.post("/", headers={"Cookie": f"csrftoken=planted; sessionid={who}"}) for who in "ab"]
    for visitor in visitors:
        visitor.csrf_processing_done, visitor.META["CSRF_COOKIE"] = True, "planted"
    assert len({scope_of(visitor, resolve()) for visitor in visitors}) == 1


def test_a_false_label_hides_that_a_body_was_cut_off(rf: RequestFactory) -> None:
    """If a middleware has read the body; without one, it is refused: tests/compared/test_bodies.py."""
    sent: Any = {"headers": {"Content-Encoding": "gzip"}, "wsgi.input": BytesIO(b'{"a":')}
    request = rf.generic("POST", "/", b'{"a":1}', content_type="application/json", **sent)
    assert request.body == b'{"a":'
    assert fingerprint_of(request, resolve(), request, payload_of)
