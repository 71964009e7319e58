"""Readers of keys that are not in the header, and the hidden field of a form."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from django import forms
from django.core.files.uploadedfile import SimpleUploadedFile
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect, JsonResponse
from django.template import engines
from django.test import Client
from django.urls import path
from django.views.decorators.csrf import csrf_exempt

from django_idempotency import IdempotencyConfigurationError, idempotent
from django_idempotency.keys import (
    derived_key,
    from_cloudevent,
    from_form_field,
    from_header,
    from_json,
    key_reference,
)
from django_idempotency.models import IdempotencyKey
from tests.http import replayed
from tests.shopapp.models import Order

Post = Callable[..., Any]
pytestmark = [pytest.mark.django_db, pytest.mark.urls("tests.integration.test_keys")]
PAGE = """{% load idempotency %}
<form method="post" enctype="multipart/form-data">{% csrf_token %}{% idempotency_key %}{{ form }}</form>"""
UUID = r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}"


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
    def view(request: HttpRequest) -> HttpResponse:
        Order.objects.create(reference=request.read().decode())
        return JsonResponse({"orders": Order.objects.count()})

    return view


urlpatterns = [
    path("order", order),
    path("header", webhook(from_header("webhook-id"))),
    path("json", webhook(from_json("id"))),
    path("nested", webhook(from_json("data", "id"))),
    path("own", webhook(lambda request: None)),
    path("optional", webhook(from_json("id"), required=False)),
    path("cloudevent", webhook(from_cloudevent(), fingerprint=None)),
]


def hidden_fields(page: Any) -> dict[str, str]:
    return dict(re.findall(r'<input type="hidden" name="(\w+)" value="([^"]+)">', page.content.decode()))


class TestForm:
    @pytest.fixture
    def browser(self) -> Client:
        return Client(enforce_csrf_checks=True)

    def test_the_tag_renders_a_new_key_each_time(self) -> None:
        """A random UUID in a hidden field."""
        tag = engines["django"].from_string("{% load idempotency %}{% idempotency_key %}")
        fields = [tag.render() for _ in range(2)]
        for field in fields:
            assert re.fullmatch(rf'<input type="hidden" name="idempotency_key" value="{UUID}">', field)
        assert fields[0] != fields[1]

    def test_the_tag_takes_another_name(self) -> None:
        """Escaped, as everything in a template."""
        tag = engines["django"].from_string("{% load idempotency %}{% idempotency_key name %}")
        assert tag.render({"name": '"once'}).startswith('<input type="hidden" name="&quot;once" value="')

    def test_a_double_click_makes_one_order(self, browser: Client) -> None:
        """The second click gets the redirect of the first."""
        fields = hidden_fields(browser.get("/order"))
        assert set(fields) == {"csrfmiddlewaretoken", "idempotency_key"}

        first, second = (browser.post("/order", {**fields, "reference": "a book"}) for _ in range(2))

        created = Order.objects.get()
        assert [(r.status_code, r["Location"]) for r in (first, second)] == [(302, f"/orders/{created.pk}")] * 2
        assert [replayed(r) for r in (first, second)] == ["false", "true"]

    def test_an_upload_with_the_form_is_compared_by_its_content(self, browser: Client) -> None:
        """The form has been parsed for its key."""
        fields = {**hidden_fields(browser.get("/order")), "reference": "a book"}

        def send(content: bytes) -> Any:
            return browser.post("/order", {**fields, "image": SimpleUploadedFile("a.png", content)})

        assert [send(content).status_code for content in (b"one", b"one", b"two")] == [302, 302, 422]
        assert Order.objects.count() == 1

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
    def test_another_header(self, post: Post) -> None:
        """The standard one is not looked at."""
        headers = {"webhook-id": "msg_1"}
        assert [replayed(post("/header", {"a": 1}, headers=headers)) for _ in range(2)] == ["false", "true"]
        assert IdempotencyKey.objects.get().key == "msg_1"
        response = post("/header")
        assert response.json()["detail"] == "This operation needs the request header webhook-id, with a unique value."

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

    @pytest.mark.parametrize(
        ("path", "body", "key"),
        [("/json", {"id": "evt_1"}, "evt_1"), ("/json", {"id": 7}, "7"), ("/nested", {"data": {"id": "x"}}, "x")],
    )
    def test_a_field_of_a_json_body(self, post: Post, path: str, body: Any, key: str) -> None:
        """A string or a number; the view can read the body again."""
        assert [replayed(post(path, body)) for _ in range(2)] == ["false", "true"]
        assert IdempotencyKey.objects.get().key == key
        assert Order.objects.get().reference.startswith("{")

    @pytest.mark.parametrize(
        ("path", "body", "detail"),
        [
            ("/json", {}, "This operation needs a string in the field id of its JSON body, with a unique value."),
            ("/json", ["id"], "This operation needs a string in the field id of its JSON body, with a unique value."),
            ("/nested", {"data": 1}, "This operation needs a string in the field data.id of its JSON body, "),
            ("/json", {"id": None}, "This operation needs a string in the field id of its JSON body, "),
            ("/json", {"id": True}, "The request does not carry a usable key. The field id is not a string."),
            ("/nested", {"data": {"id": []}}, "The request does not carry a usable key. The field data.id is not a"),
            ("/json", {"id": ""}, "The request does not carry a usable key. It is empty."),
            ("/json", {"id": "a b"}, "The request does not carry a usable key. It may contain visible ASCII"),
            ("/json", {"id": "x" * 256}, "The request does not carry a usable key. It is longer than 255 characters."),
            ("/json", "{", "The request does not carry a usable key. The body is not JSON."),
            ("/own", {}, "This operation needs an idempotency key."),
        ],
    )
    def test_what_is_missing_or_wrong_is_400(self, post: Post, path: str, body: Any, detail: str) -> None:
        """And says where it was looked for."""
        response = post(path, body)
        assert (response.status_code, response.json()["detail"][: len(detail)]) == (400, detail)
        assert not Order.objects.exists()

    def test_without_one_an_optional_view_runs(self, post: Post) -> None:
        """As with the header."""
        assert [replayed(post("/optional")) for _ in range(2)] == [None, None]
        assert Order.objects.count() == 2

    def test_from_json_wants_a_name(self) -> None:
        """When it is made."""
        with pytest.raises(IdempotencyConfigurationError, match="name the field"):
            from_json()
        with pytest.raises(IdempotencyConfigurationError, match="name the field"):
            from_json("data", "")

    def test_a_body_that_somebody_has_consumed_is_told(self, rf: Any) -> None:
        """By a middleware that reads the stream."""
        request = rf.post("/", b"{}", content_type="application/json")
        request.read()
        with pytest.raises(IdempotencyConfigurationError, match=r"Read request\.body there"):
            from_json("id")(request)


class TestCloudEvents:
    def key(self, post: Post, **attributes: str) -> str:
        post("/cloudevent", headers={f"ce-{name}": value for name, value in attributes.items()})
        key = IdempotencyKey.objects.latest("pk").key
        return str(key)

    def test_source_and_id_make_the_key(self, post: Post) -> None:
        """An id is unique for its source only."""
        assert self.key(post, source="/shop", id="1") == "5:/shop:1"
        assert self.key(post, source="/shop:1", id="2") == "7:/shop:1:2"
        assert self.key(post, source="/shop", id="1:2") == "5:/shop:1:2"

    def test_what_is_no_key_is_hashed(self, post: Post) -> None:
        """An event must not be refused for its long source."""
        key = self.key(post, source="/" + "s" * 255, id="1")
        assert key == "sha256:638457a8453a55747ea61b45c63639ba0ddff10e9a44bcf5a1cfc76223479501"

    def test_the_structured_form_is_read_too(self, post: Post) -> None:
        """The same event in a JSON envelope is the same key."""
        body = {"source": "/shop", "id": "1"}
        post("/cloudevent", body, content_type="application/cloudevents+json; charset=utf-8")
        assert IdempotencyKey.objects.get().key == "5:/shop:1"

    @pytest.mark.parametrize("body", [[], {"id": "1"}, {"id": "1", "source": 7}, {"id": "1", "source": ""}])
    def test_an_envelope_without_both_is_400(self, post: Post, body: Any) -> None:
        """As without the headers."""
        for response in (
            post("/cloudevent", body, content_type="application/cloudevents+json"),
            post("/cloudevent", body, headers={"ce-id": "1"}),
        ):
            assert (response.status_code, response.json()["title"]) == (400, "Idempotency-Key is missing")


def test_a_reference_names_a_key_in_logs() -> None:
    """16 hex digits, which never change."""
    assert key_reference("abc") == "ba7816bf8f01cfea"


def test_a_derived_key_can_be_made_from_a_row() -> None:
    """The same as the view gave to the gateway, in every release."""
    derived = derived_key(scope="user:auth.User:1", operation="POST payments/", key="abc", step="charge")
    assert derived == "b74d0d28-6d82-5650-8a7d-4f1c0e85eb9d"
