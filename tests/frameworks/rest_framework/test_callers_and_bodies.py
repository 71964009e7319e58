"""Callers whom only `request.auth` tells, and bodies that only some handlers want parsed."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("rest_framework")

from django.contrib.auth.models import AnonymousUser
from django.http import HttpResponse
from django.urls import path
from rest_framework.authentication import BaseAuthentication, SessionAuthentication, TokenAuthentication
from rest_framework.parsers import JSONParser
from rest_framework.response import Response
from rest_framework.views import APIView

from django_idempotency import Idempotency, get_operation
from django_idempotency.maintenance import forget_scope, scope_of_user
from django_idempotency.models import IdempotencyKey
from django_idempotency.rest_framework import IdempotencyMixin
from tests.shopapp.models import Order
from tests.views import creates, view_class


class Partner(BaseAuthentication):
    """Tells callers by a header that the package does not know, and knows no users."""

    def authenticate(self, request: Any) -> Any:
        name = request.META.get("HTTP_X_PARTNER")
        return (AnonymousUser(), name) if name else None


class Bearer(BaseAuthentication):
    """Returns the name in another header. It may be a partner's name as well."""

    def authenticate(self, request: Any) -> Any:
        name = request.META.get("HTTP_X_BEARER")
        return (AnonymousUser(), name) if name else None


class Configured(BaseAuthentication):
    """Returns the name in the header that its instance is made for."""

    def __init__(self, header: str) -> None:
        self.header = header

    def authenticate(self, request: Any) -> Any:
        name = request.headers.get(self.header)
        return (AnonymousUser(), name) if name else None


class Issued(BaseAuthentication):
    """Accepts the tokens of an issuer, and makes users of them who are in no table."""

    def __init__(self, issuer: str) -> None:
        self.issuer = issuer

    def authenticate(self, request: Any) -> Any:
        if request.headers.get("X-Issuer") != self.issuer:
            return None
        token = SimpleNamespace(payload={"iss": self.issuer, "user_id": 17})
        return Stateless(), token


class Stateless:
    is_authenticated, pk = True, 17


class Stranger(Partner):
    """Knows the caller, and not even an anonymous user."""

    def authenticate(self, request: Any) -> Any:
        found = super().authenticate(request)
        return found and (None, found[1])


def told_by(*authenticators: Any, **options: Any) -> Any:
    view = view_class(IdempotencyMixin, APIView, post=creates(), authentication_classes=authenticators)
    return view.as_view(idempotency=options)


def raw(**attributes: Any) -> Any:
    """A view that reads the body, or what the parsers make of it."""

    def read(request: Any) -> HttpResponse:
        Order.objects.create()
        if "parse" in request.query_params:
            return Response({"data": str(request.data)})
        return HttpResponse(request.body[:10])

    return view_class(IdempotencyMixin, APIView, post=read, **attributes).as_view()


def derives(request: Any) -> HttpResponse:
    return HttpResponse(get_operation(request).derive_key("charge"))


urlpatterns = [
    path("partners", told_by(Partner)),
    path("strangers", told_by(Stranger)),
    path("derives", view_class(IdempotencyMixin, APIView, post=derives, authentication_classes=[Partner]).as_view()),
    path("issued", told_by(partial(Issued, "shops"), partial(Issued, "partners"))),
    path("v1", told_by(Bearer, operation="order")),
    path("v2", told_by(Partner, Bearer, operation="order")),
    path("both", told_by(Bearer, Partner)),
    path("configured", told_by(partial(Configured, "X-Shop"), partial(Configured, "X-Partner"))),
    path("users-and-partners", told_by(SessionAuthentication, TokenAuthentication, Partner)),
    path("raw", raw()),
    path("leased", raw(idempotency=Idempotency(lease=60))),
    path("json-only", raw(parser_classes=[JSONParser])),
    path("observed", raw(idempotency=Idempotency(lease=60, observe=True))),
]
pytestmark = [pytest.mark.django_db, pytest.mark.urls("tests.frameworks.rest_framework.test_callers_and_bodies")]
DEEP = "[" * 200_000


@pytest.mark.parametrize(("path", "other"), [("/both", "X-Bearer"), ("/configured", "X-Shop")])
def test_the_same_text_from_two_authenticators_is_two_callers(post: Any, path: str, other: str) -> None:
    """One key: the bearer named 17 does not get the answer of partner 17, nor does the shop of the same class."""
    answers = [post(path, headers={header: "17"}) for header in (other, "X-Partner", other, "X-Partner")]
    assert [answer.headers["Idempotency-Replayed"] for answer in answers] == ["false", "false", "true", "true"]
    assert (Order.objects.count(), IdempotencyKey.objects.count()) == (2, 2)


def test_the_same_text_in_two_versions_with_one_operation_is_one_caller_only_by_one_authenticator(post: Any) -> None:
    """Partner 17 does not get the response of shop 17, and the client of both versions gets its own."""
    requests = [("/v1", "X-Bearer"), ("/v2", "X-Partner"), ("/v2", "X-Bearer")]
    answers = [post(path, headers={header: "17"}) for path, header in requests]
    assert [answer.headers["Idempotency-Replayed"] for answer in answers] == ["false", "false", "true"]
    assert Order.objects.count() == 2


@pytest.mark.parametrize("path", ["/partners", "/users-and-partners"])
def test_the_scope_of_a_text_stays_the_same_from_release_to_release(post: Any, path: str) -> None:
    """A retry across an upgrade must find its key, also where another authenticator is added."""
    post(path, headers={"X-Partner": "17"})
    assert IdempotencyKey.objects.get().scope == (
        "auth:3e1b77a15ad6b654d07ac1ddd635acf57d055102ad5a6ed8160497a094928c47"
    )


@pytest.mark.parametrize("path", ["/partners", "/strangers"])
def test_two_texts_are_two_callers(post: Any, path: str) -> None:
    """Whatever the authenticator returns beside them."""
    answers = [post(path, headers={"X-Partner": name}) for name in ("17", "18", "17")]
    assert [answer.headers["Idempotency-Replayed"] for answer in answers] == ["false", "false", "true"]


def test_switched_off_a_caller_derives_the_same_key(post: Any, settings: Any) -> None:
    """And no other caller derives it. The gateway knows the charge by it."""
    callers = [{"X-Partner": name} for name in ("17", "18")]
    protected = [post("/derives", headers=caller).content for caller in callers]
    settings.IDEMPOTENCY = {"ENABLED": False}
    assert [post("/derives", headers=caller).content for caller in callers] == protected
    assert len(set(protected)) == 2


@pytest.mark.parametrize(
    ("body", "content_type"), [("{", "application/json"), (DEEP, "application/json"), ("x", "application/x-unknown")]
)
def test_a_handler_that_reads_the_raw_body_gets_any(post: Any, body: str, content_type: str) -> None:
    """As without protection; compared by its bytes."""
    first, second, other = (post("/raw", text, content_type=content_type) for text in (body, body, body + " "))
    assert (first.status_code, first.content) == (200, body[:10].encode())
    assert (second.headers["Idempotency-Replayed"], second.content) == ("true", first.content)
    assert other.status_code == 422
    assert Order.objects.count() == 1


@pytest.mark.parametrize(
    ("path", "body", "content_type", "status"),
    [
        ("/raw?parse", "{", "application/json", 400),
        ("/json-only?parse", "x", "text/csv", 415),
        ("/leased", "{", "application/json", 400),
    ],
)
def test_an_unreadable_body_claims_nothing(post: Any, path: str, body: str, content_type: str, status: int) -> None:
    """The same key works afterwards. In leased mode the parser's error comes first: the claim is committed at once."""
    assert post(path, body, content_type=content_type).status_code == status
    assert (IdempotencyKey.objects.count(), Order.objects.count()) == (0, 0)
    assert post(path, "{}").status_code == 200


@pytest.mark.parametrize("body", ["{", DEEP], ids=["malformed", "deep"])
def test_observed_in_leased_mode_it_is_left_to_the_handler(post: Any, client: Any, body: str) -> None:
    """As without protection: raw bytes are taken; whoever asks for parsed data gets the error, not an empty body."""
    raw = post("/observed", body)
    assert (raw.status_code, raw.content, Order.objects.count()) == (200, body[:10].encode(), 1)
    client.raise_request_exception = False
    assert post("/observed?parse", body, key="other").status_code == (400 if body == "{" else 500)


@pytest.mark.parametrize(("path", "second"), [("/raw", 200), ("/json-only", 422)])
def test_what_the_view_does_not_parse_is_compared_by_its_bytes(post: Any, path: str, second: int) -> None:
    """A form costs a view without a parser for forms no more than its bytes."""
    form = {"content_type": "application/x-www-form-urlencoded"}
    assert [post(path, body, **form).status_code for body in ("a=1&b=2", "b=2&a=1")] == [200, second]


def test_a_multipart_form_that_the_view_does_not_parse_is_compared_by_its_bytes(post: Any) -> None:
    """The handler gets the raw body, or the framework's own refusal, which uses up no key."""
    form = {"content_type": "multipart/form-data; boundary=x"}
    bodies = [f'--x\r\nContent-Disposition: form-data; name="a"\r\n\r\n{value}\r\n--x--\r\n' for value in (1, 1, 2)]
    assert [post("/json-only", body, **form).status_code for body in bodies] == [200, 200, 422]
    assert post("/json-only?parse", bodies[0], key="other", **form).status_code == 415
    assert not IdempotencyKey.objects.filter(key="other").exists()


@pytest.mark.django_db
def test_users_of_two_issuers_are_two_callers(post: Any) -> None:
    """Neither is in a table that would tell them apart. Both are forgotten as what they are."""
    answers = [post("/issued", headers={"X-Issuer": issuer}) for issuer in ("shops", "partners", "shops")]
    assert [answer.headers["Idempotency-Replayed"] for answer in answers] == ["false", "false", "true"]
    assert forget_scope(scope_of_user(Stateless())).deleted == 2
