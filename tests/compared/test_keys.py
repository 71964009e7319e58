"""Readers of keys that are not in the header, and the hidden field of a form."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from typing import Any
from uuid import UUID, uuid4

import pytest
from django import forms
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect, JsonResponse
from django.template import engines
from django.test import Client
from django.urls import path
from django.views.decorators.csrf import csrf_exempt

from django_idempotency import idempotent
from django_idempotency.engine.protocol.digests import identify
from django_idempotency.engine.request import sent_key
from django_idempotency.keys import InvalidKey, derived_key, from_form_field, from_header, key_reference
from django_idempotency.maintenance import find_key
from django_idempotency.models import IdempotencyKey
from tests.claims import expire
from tests.heard import heard
from tests.http import posting_to_a_view, problem, replayed
from tests.shopapp.models import Order

Post = Callable[..., Any]
pytestmark = [pytest.mark.django_db, pytest.mark.urls("tests.compared.test_keys")]
PAGE = """{% load idempotency %}
<form method="post" enctype="multipart/form-data">{% csrf_token %}{% idempotency_key %}{{ form }}</form>"""
A_UUID = r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}"


class OrderForm(forms.Form):
    reference = forms.CharField()
    image = forms.FileField(required=False)


@idempotent(key=from_form_field())
def order(request: HttpRequest) -> HttpResponse:
    form = OrderForm(request.POST or None, request.FILES or None)
    if form.is_valid():
        pk = Order.objects.create(reference=form.cleaned_data["reference"]).pk
        return HttpResponseRedirect(f"/orders/{pk}")
    return HttpResponse(engines["django"].from_string(PAGE).render({"form": form}, request))


def webhook(key: Any, **options: Any) -> Any:
    @csrf_exempt
    @idempotent(key=key, **options)
    def takes_its_event(request: HttpRequest) -> HttpResponse:
        Order.objects.create(reference=request.read().decode())
        return JsonResponse({"orders": Order.objects.count()})

    return takes_its_event


def event_id(request: HttpRequest) -> Any:
    found = json.loads(request.body)["id"]
    if found == "wrong":
        raise InvalidKey("No event.")
    return found


urlpatterns = [
    path("order", order),
    path("header", webhook(from_header("webhook-id"))),
    path("own", webhook(event_id)),
    path("optional", webhook(event_id, required=False)),
]


def hidden_fields(page: Any) -> dict[str, str]:
    return dict(re.findall(r'<input type="hidden" name="(\w+)" value="([^"]+)">', page.content.decode()))


class TestForm:
    @pytest.fixture
    def browser(self) -> Client:
        return Client(enforce_csrf_checks=True)

    def test_the_tag_renders_a_new_key_each_time(self) -> None:
        """A UUID of version 7 in a hidden field. Its name can be another one, and is escaped. Or the key alone."""
        tags = "{% load idempotency %}{% idempotency_key %}{% idempotency_key name %}{% new_idempotency_key %}"
        tag = engines["django"].from_string(tags)
        pages = [tag.render({"name": '"once'}) for _ in range(2)]
        field = f'<input type="hidden" name="%s" value="{A_UUID}">'
        for page in pages:
            assert re.fullmatch(field % "idempotency_key" + field % "&quot;once" + A_UUID, page)
        assert pages[0] != pages[1]

    @pytest.mark.parametrize("late_keys", ["run", "refuse"])
    def test_a_double_click_makes_one_order(self, browser: Client, settings: Any, late_keys: str) -> None:
        """The second click gets the redirect of the first. The browser is told apart by its CSRF cookie."""
        settings.IDEMPOTENCY = {"LATE_KEYS": late_keys, "ANONYMOUS": "refuse"}
        fields = hidden_fields(browser.get("/order"))
        first, second = (browser.post("/order", {**fields, "reference": "a book"}) for _ in range(2))
        created = Order.objects.get()
        assert [(r.status_code, r["Location"]) for r in (first, second)] == [(302, f"/orders/{created.pk}")] * 2
        assert [replayed(r) for r in (first, second)] == ["false", "true"]

    def test_a_corrected_form_has_a_new_key(self, browser: Client) -> None:
        """The page that shows the errors is rendered anew, and is itself replayed to a double click."""
        fields = hidden_fields(browser.get("/order"))
        wrong, again = (browser.post("/order", fields) for _ in range(2))
        assert (wrong.status_code, replayed(again), wrong.content) == (200, "true", again.content)

        response = browser.post("/order", {**hidden_fields(wrong), "reference": "a book"})
        assert (response.status_code, replayed(response)) == (302, "false")

    def test_a_form_without_the_field_is_told_so(self, client: Client) -> None:
        """Not to send a header."""
        response = client.post("/order", {"reference": "a book"})
        assert (response.status_code, response.json()["detail"]) == (
            400,
            "This operation needs the form field 'idempotency_key', with a unique value.",
        )
        assert not Order.objects.exists()


class TestReaders:
    def test_another_header_has_the_syntax_of_the_standard_one(self, post: Post) -> None:
        """A header that was sent twice arrives as a list. It is refused, and is no second key. Quotes do not count."""
        found = [post("/header", {"a": 1}, headers={"webhook-id": value}) for value in ("w", '"w"', "w,w", "w, w")]
        assert [(answer.status_code, replayed(answer)) for answer in found] == [
            (200, "false"),
            (200, "true"),
            (400, "false"),
            (400, "false"),
        ]
        assert found[2].json()["detail"].endswith("send the header once.")
        assert Order.objects.count() == 1

    def test_a_callable_of_the_project(self, post: Post) -> None:
        """Its key is checked as every key is, and its refusal is told. Without a key, an optional view runs."""
        answers = [post("/own", {"id": value}) for value in ("evt_1", "evt_1", "x" * 256, "wrong", None)]
        assert [(answer.status_code, replayed(answer)) for answer in answers] == [
            (200, "false"),
            (200, "true"),
            (400, "false"),
            (400, "false"),
            (400, "false"),
        ]
        details = [answer.json()["detail"] for answer in answers[2:]]
        assert details == [
            "The request does not carry a usable key. It is longer than 255 characters.",
            "The request does not carry a usable key. No event.",
            "This operation needs an idempotency key.",
        ]
        assert [replayed(post("/optional", {"id": None})) for _ in range(2)] == [None, None]
        assert Order.objects.count() == 3


def test_a_reference_and_a_derived_key_never_change() -> None:
    """In logs, and at the gateway: the same as the view gave, in every release."""
    assert key_reference("abc") == "ba7816bf8f01cfea"
    derived = derived_key(scope="user:auth.User:1", operation="POST payments/", key="abc", step="charge")
    assert derived == "b74d0d28-6d82-5650-8a7d-4f1c0e85eb9d"


def test_two_deployments_with_one_gateway_account_derive_two_keys(settings: Any) -> None:
    """If each has a NAMESPACE of its own, or one of them. An empty one derives what 0.3.0 derived."""
    derived = []
    for namespace in ("", "shop a", "shop b"):
        settings.IDEMPOTENCY = {"NAMESPACE": namespace}
        derived.append(derived_key(scope="user:auth.User:1", operation="POST payments/", key="abc", step="charge"))
    assert derived == [
        "b74d0d28-6d82-5650-8a7d-4f1c0e85eb9d",
        "3ebb7ba4-bdc1-5f50-be2c-366957127549",
        "567809e1-fcab-54e0-956c-785f070d3c43",
    ]


# --- `late_keys="refuse"`


TTL = 3600


def made(ago: float) -> str:
    """A UUID of version 7 that was made so many seconds ago."""
    stamp = int((time.time() - ago) * 1000).to_bytes(6, "big")
    random = bytearray(uuid4().bytes[6:])
    random[0] = 0x70 | random[0] & 0x0F
    return str(UUID(bytes=stamp + bytes(random)))


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("lease", [None, 60])
@pytest.mark.parametrize("ago", [TTL + 60, -600])
def test_a_late_key_without_a_row_is_refused(ago: float, lease: int | None) -> None:
    """Or a key of the future, whose age nothing can be said about. It is told, and not one row is written."""
    send = posting_to_a_view(late_keys="refuse", ttl=TTL, lease=lease, key=lambda request: made(ago))
    with heard() as told:
        answer = send()
    assert problem(answer)["code"] == "key-too-old"
    assert (answer.status_code, answer.headers["Idempotency-Replayed"]) == (409, "false")
    assert [event["event"] for event in told] == ["too_old"]
    assert (Order.objects.count(), IdempotencyKey.objects.count()) == (0, 0)


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(("wrong_by", "ago", "status"), [(-400, TTL + 60, 409), (2 * TTL, 60, 200)])
def test_a_workers_clock_makes_no_key_young_or_late(
    monkeypatch: pytest.MonkeyPatch, wrong_by: int, ago: float, status: int
) -> None:
    """A slow worker ran a known key again after its row was deleted, and a fast one refused new keys."""
    key, right = made(ago), time.time
    monkeypatch.setattr(time, "time", lambda: right() + wrong_by)
    monkeypatch.setattr(sent_key, "time", time.time, raising=False)
    assert posting_to_a_view(late_keys="refuse", ttl=TTL, key=lambda request: key)().status_code == status


@pytest.mark.django_db(transaction=True)
def test_a_late_retry_is_replayed_as_long_as_its_row_lives() -> None:
    """An expired row is no answer, and is not taken over."""
    key, late = made(0), made(TTL + 60)
    send = posting_to_a_view(late_keys="refuse", ttl=TTL, key=lambda request: key)
    first = send()
    assert (first.status_code, first.headers["Idempotency-Replayed"]) == (200, "false")
    row = IdempotencyKey.objects.get()  # as if it had been claimed under the late key
    of = identify(scope=row.scope, operation=row.operation, key=late, stored=True)
    IdempotencyKey.objects.update(key=late, key_hash=of.key_hash, scope_hash=of.scope_hash)
    again = posting_to_a_view(late_keys="refuse", ttl=TTL, key=lambda request: late)
    assert again().headers["Idempotency-Replayed"] == "true"
    expire()
    assert problem(again())["code"] == "key-too-old"
    assert (Order.objects.count(), IdempotencyKey.objects.get().attempt) == (1, 1)


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("key", ["k", "397c5450-f0c7-4b45-a02c-cb16241222fc"])
def test_another_key_is_no_usable_key(key: str) -> None:
    """Nothing says when it was made."""
    answer = posting_to_a_view(late_keys="refuse", ttl=TTL, key=lambda request: key)()
    assert problem(answer)["code"] == "invalid-key"


@pytest.mark.django_db(transaction=True)
def test_a_key_is_not_forgotten_before_it_is_late() -> None:
    """Its client's clock may be five minutes ahead, so its row lives five minutes longer than `ttl`."""
    posting_to_a_view(late_keys="refuse", ttl=TTL, key=lambda request: made(-290))()
    row = IdempotencyKey.objects.get()
    assert (row.expires_at - row.created_at).total_seconds() >= TTL + 300


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    ("options", "settings_of"),
    [
        ({"late_keys": "refuse"}, {}),
        ({}, {"KEY_VALIDATOR": "django_idempotency.keys.is_uuid"}),
        ({"late_keys": "refuse"}, {"KEY_VALIDATOR": "django_idempotency.keys.is_uuid"}),
    ],
)
def test_a_uuid_that_was_parsed_is_one_key_in_either_case(
    settings: Any, options: dict[str, Any], settings_of: dict[str, Any]
) -> None:
    """iOS writes it in upper case, and a database or library returns it in lower case. Support finds it by both."""
    settings.IDEMPOTENCY = settings_of
    key = made(0)
    for sent in (key.upper(), key):
        posting_to_a_view(**options, key=lambda request, sent=sent: sent)()
    assert Order.objects.count() == 1
    assert [row.key for row in (*find_key(key.upper()), *find_key(f'"{key.upper()}"'))] == [key, key]


@pytest.mark.django_db(transaction=True)
def test_any_other_key_is_compared_with_its_case(settings: Any) -> None:
    """Nothing says that it is a UUID, and two keys must never become one."""
    settings.IDEMPOTENCY = {"KEY_VALIDATOR": f"{__name__}.accepts"}
    for sent in ("abc", "ABC", str(UUID(int=10)), str(UUID(int=10)).upper()):
        posting_to_a_view(key=lambda request, sent=sent: sent)()
    assert Order.objects.count() == 4


def accepts(key: str) -> bool:
    return True
