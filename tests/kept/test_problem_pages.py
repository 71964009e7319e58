"""A browser gets a page that a shopper understands; a program gets JSON, also for an exception of `run_once`."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.http import HttpRequest, HttpResponse
from django.test import Client, RequestFactory, override_settings
from django.urls import path
from django.utils import translation

from django_idempotency import (
    NotRun,
    OperationInProgress,
    OutcomeUnknown,
    PayloadMismatch,
    StoreBusy,
    get_operation,
    idempotent,
    problem_response,
)
from django_idempotency.engine.conf import resolve
from django_idempotency.engine.protocol.outcomes import Conflicted, InDoubt, Mismatched, TooOld, Unavailable
from django_idempotency.engine.request.problems import outstanding, problem_of, respond
from django_idempotency.keys import from_form_field, from_header
from tests.shopapp.models import Order

BROWSER = {"Accept": "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"}
IN_BETWEEN: list[Any] = []


@idempotent(key=from_form_field())
def order(request: HttpRequest) -> HttpResponse:
    if IN_BETWEEN:
        IN_BETWEEN.pop()()
    return HttpResponse(Order.objects.create(reference=request.POST["item"]).pk, status=201)


@idempotent(key=from_form_field(), may_replay=lambda request: "X-Denied" not in request.headers)
def picky(request: HttpRequest) -> HttpResponse:
    return HttpResponse(status=400 if request.POST["item"] == "sold out" else 201)


@idempotent(lease=60, record=lambda response: False)
def refer(request: HttpRequest) -> HttpResponse:
    placed = get_operation(request).write("order", Order.objects.create, reference="59")
    get_operation(request).refer_to(placed)
    if IN_BETWEEN:
        IN_BETWEEN.pop()()
    return HttpResponse(status=201)


@idempotent(lease=60, on_abandoned="hold")
def doubt(request: HttpRequest) -> HttpResponse:
    operation = get_operation(request)
    operation.refer_to("order", "59")
    return HttpResponse(operation.call("charge", [].pop))


urlpatterns = [path("order/", order), path("picky/", picky), path("pay/", refer), path("doubt/", doubt)]
pytestmark = pytest.mark.urls(__name__)
FORM = {"idempotency_key": "one", "item": "a <b>book</b>", "csrfmiddlewaretoken": "x"}


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("accept", "kind"),
    [
        (BROWSER["Accept"], "text/html; charset=utf-8"),
        ("*/*", "application/problem+json"),
        ("application/json", "application/problem+json"),
        ("application/json, text/html;q=0.5", "application/problem+json"),
        ("", "application/problem+json"),
    ],
)
def test_what_the_client_prefers(accept: str, kind: str, client: Client) -> None:
    answer = client.post("/order/", {}, headers={"Accept": accept})

    assert (answer.status_code, answer["Content-Type"], answer["Vary"]) == (400, kind, "Accept")


@pytest.mark.parametrize(
    ("headers", "fragment"),
    [
        ({}, True),
        ({"HX-Request-Type": "partial", "Accept": "text/html"}, True),
        ({"HX-Request-Type": "full", "Accept": "text/html"}, False),
        ({"HX-Boosted": "true"}, False),
    ],
)
def test_htmx_gets_the_fragment_that_it_swaps(headers: Any, fragment: bool, rf: Any) -> None:
    """Its button asks by htmx, with the header of the key. htmx that swaps the whole body gets the whole page."""
    sent = {"Idempotency-Key": "one", "HX-Request": "true", "Accept": "*/*", **headers}
    answer = respond(rf.post("/order/?shop=1", {"item": "a book"}, headers=sent), outstanding(resolve()))
    text = answer.content.decode()
    assert answer.status_code == 409
    assert text.startswith('<section class="idempotency-problem">' if fragment else "<!doctype html>")
    again = 'hx-post="/order/?shop=1" hx-headers="{&quot;Idempotency-Key&quot;: &quot;one&quot;}"'
    assert ('value="a book"' in text, again in text) == (True, fragment)


@pytest.mark.parametrize("method", ["PATCH", "PUT"])
def test_htmx_is_given_no_button_for_another_method(method: str, rf: Any) -> None:
    """As a POST, it would be another request, without the form."""
    sent = {"Idempotency-Key": "one", "HX-Request": "true", "Accept": "*/*"}
    form = {"data": "item=book", "content_type": "application/x-www-form-urlencoded", "headers": sent}
    assert "<form" not in respond(rf.generic(method, "/order/", **form), outstanding(resolve())).content.decode()


def test_htmx_repeats_the_header_that_has_the_key(rf: Any) -> None:
    """And that of the CSRF token, which a form of htmx may have there alone."""
    key = from_header("X-Order-Key")
    sent = {"X-Order-Key": "one", "X-CSRFToken": "secret", "HX-Request": "true"}
    request = rf.post("/order/", {"item": "a book"}, headers=sent)
    assert key(request) == "one"
    again = "{&quot;X-CSRFToken&quot;: &quot;secret&quot;, &quot;X-Order-Key&quot;: &quot;one&quot;}"
    assert again in respond(request, outstanding(resolve())).content.decode()


@pytest.mark.django_db
def test_a_form_that_is_too_large_is_413_in_a_browser_too(settings: Any) -> None:
    """Its page sends no form again, because Django does not read this one."""
    settings.DATA_UPLOAD_MAX_MEMORY_SIZE = 10
    view = idempotent(scope=lambda request: "s")(lambda request: HttpResponse())
    form = {"content_type": "application/x-www-form-urlencoded", "headers": {**BROWSER, "Idempotency-Key": "k"}}

    answer = view(RequestFactory().post("/", "a=12345678901", **form))

    assert (answer.status_code, answer["Content-Type"]) == (413, "text/html; charset=utf-8")


@pytest.mark.django_db
def test_the_sentences_are_for_shoppers_and_nothing_is_cached(client: Client) -> None:
    answers = [client.post("/order/", {**FORM, "item": item}, headers=BROWSER) for item in ("a book", "a lamp")]

    text = answers[1].content.decode()
    assert (answers[1].status_code, answers[1]["Idempotency-Replayed"]) == (422, "false")
    assert "This form was sent before, with different content" in text
    assert "<form" not in text  # nothing good comes of sending it again
    refused = [client.post("/picky/", {**FORM, "item": item}, headers=BROWSER) for item in ("sold out", "a lamp")]
    assert "This form was refused when you first sent it" in refused[1].content.decode()
    denied = client.post("/picky/", {**FORM, "item": "a lamp"}, headers={**BROWSER, "X-Denied": "1"}).content.decode()
    assert "This form was sent before, with different content" in denied  # and not what became of it
    assert "no-store" in answers[1]["Cache-Control"]
    with translation.override("de"):
        german = client.post("/order/", {}, headers=BROWSER)
    assert "In Ihrer Anfrage fehlt etwas" in german.content.decode()


@pytest.mark.parametrize(
    ("referer", "secure", "linked"),
    [
        ("http://testserver/form?shop=1", False, True),
        ("http://testserver/form?shop=1", True, False),
        ("http://evil.example/form", False, False),
        ("", False, False),
    ],
)
def test_a_changed_form_leads_back_to_a_new_one(referer: str, secure: bool, linked: bool, rf: Any) -> None:
    """To the page that it came from, if that is one of this site, and as safe as this request."""
    request = rf.post("/order/", FORM, headers={**BROWSER, "Referer": referer}, secure=secure)
    text = respond(request, problem_of(Mismatched(), resolve())).content.decode()
    assert ('<a href="http://testserver/form?shop=1">Open the form again</a>' in text, "href" in text) == (linked,) * 2


@pytest.mark.parametrize(
    ("outcome", "status", "says", "again"),
    [
        (Conflicted(), 409, "We are still working on your request", True),
        (InDoubt(), 409, "please do not start over.", True),
        (Unavailable(), 503, "We are busy, and nothing was done", True),
        (Mismatched(), 422, "This form was sent before, with different content", False),
        (Mismatched(refused=True), 422, "This form was refused when you first sent it", False),
        (TooOld(), 409, "its request may have been processed already", False),
    ],
)
@pytest.mark.parametrize("own", [False, True])
def test_each_error_has_a_sentence_and_a_project_its_own_page(
    rf: Any, settings: Any, outcome: Any, status: int, says: str, again: bool, own: bool
) -> None:
    """Where a retry may succeed, the page sends the same form again. The project's template comes first."""
    pages = {"django_idempotency/problem.html": "{{ request.path }} is ours: {{ problem.code }}"} if own else {}
    loaders = [("django.template.loaders.locmem.Loader", pages), "django.template.loaders.app_directories.Loader"]
    read = {"loaders": loaders, "context_processors": ["django.template.context_processors.request"]}
    settings.TEMPLATES = [{"BACKEND": settings.TEMPLATES[0]["BACKEND"], "OPTIONS": read}]
    answer = respond(rf.post("/order/", FORM, headers=BROWSER), problem_of(outcome, resolve()))
    text = answer.content.decode()
    assert answer.status_code == status
    assert (says in text, 'value="one"' in text) == (not own, again and not own)
    assert ("/order/ is ours: " in text) is own


@pytest.mark.django_db
@override_settings(TEMPLATES=[])
def test_a_project_without_templates_answers_with_json(client: Client) -> None:
    assert client.post("/order/", {}, headers=BROWSER).json()["code"] == "missing-key"


@pytest.mark.django_db
def test_a_call_in_doubt_names_what_it_is_about(client: Client) -> None:
    """The reference is committed before the call."""
    client.raise_request_exception = False
    answers = [client.post("/doubt/", headers={"Idempotency-Key": "one"}) for _ in range(2)]

    assert [answer.status_code for answer in answers] == [500, 409]
    assert (answers[1].json()["code"], answers[1].json()["resource"]) == (
        "outcome-unknown",
        {"type": "order", "id": "59"},
    )


@pytest.mark.django_db(transaction=True)
def test_a_conflict_names_what_the_first_request_is_about(client: Client) -> None:
    """For the caller who owns it: the row was found by the same scope."""
    key, answers = {"Idempotency-Key": "one"}, []

    def meanwhile() -> None:
        answers.append(Client().post("/pay/", headers=key))
        answers.append(Client().post("/pay/", {"another": "body"}, headers=key))
        answers.append(Client(headers={"Authorization": "Bearer other"}).post("/pay/", headers=key))

    IN_BETWEEN.append(meanwhile)
    client.post("/pay/", headers=key)

    about = {"type": "shopapp.order", "id": str(Order.objects.first().pk)}  # type: ignore[union-attr]
    found = [
        (answer.status_code, answer.json().get("resource")) if answer.status_code != 201 else 201 for answer in answers
    ]
    assert found == [(409, about), (409, about), 201]
    late = Client().post("/pay/", {"another": "body"}, headers=key)
    assert (late.status_code, late.json()["resource"]) == (422, about)


def in_progress() -> OperationInProgress:
    error = OperationInProgress("…")
    error.retry_after = 7
    return error


@pytest.mark.parametrize("conf", [{}, {"IN_PROGRESS_STATUS": 202, "LEASE": 60}])
@pytest.mark.parametrize(
    ("error", "status", "code", "retry_after"),
    [
        (in_progress(), 409, "in-progress", "7"),
        (OutcomeUnknown("…"), 409, "outcome-unknown", "60"),
        (PayloadMismatch("…"), 422, "already-used", None),
        (StoreBusy("…"), 503, "busy", "1"),
    ],
)
def test_each_exception_has_the_answer_of_a_protected_view(
    rf: Any, settings: Any, conf: dict[str, Any], error: NotRun, status: int, code: str, retry_after: str | None
) -> None:
    """Never 202: a sender of webhooks would take that for success, and would not deliver again."""
    settings.IDEMPOTENCY, settings.DEBUG = conf, True
    response = problem_response(rf.post("/hook"), error)
    assert (response.status_code, response.headers.get("Retry-After")) == (status, retry_after)
    assert (json.loads(response.content)["code"], response.headers["Idempotency-Replayed"]) == (code, "false")
    assert response.headers["Content-Type"] == "application/problem+json"


@pytest.mark.parametrize(
    ("content_type", "button"),
    [
        ("application/x-www-form-urlencoded", True),
        ("application/x-www-form-urlencoded; charset=utf-8", True),
        ("text/plain", False),
        (None, False),
    ],
)
def test_only_a_form_has_a_button(content_type: str | None, button: bool, rf: Any) -> None:
    """As browsers name one. A request may say nothing of its type."""
    sent = {} if content_type is None else {"data": "item=book", "content_type": content_type}
    page = respond(rf.generic("POST", "/order/", headers=BROWSER, **sent), outstanding(resolve()))
    assert ("<form" in page.content.decode()) is button


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("file", [None, SimpleUploadedFile("photo.png", b"x")])
def test_a_form_with_a_file_has_no_button(file: Any, client: Client) -> None:
    """The page cannot hold the file, and the form without the file would be another request."""
    form, pages = {"item": "a book"} if file is None else {"item": "a book", "photo": file}, []

    def meanwhile() -> None:
        answer = Client().post("/pay/", form, headers={**BROWSER, "Idempotency-Key": "one"})
        pages.append((answer.status_code, "<form" in answer.content.decode()))

    IN_BETWEEN.append(meanwhile)
    client.post("/pay/", headers={"Idempotency-Key": "one"})

    assert pages == [(409, file is None)]


@pytest.mark.django_db
@pytest.mark.parametrize("item", [{"item": "'" * 200_000}, {f"item{number}": "1" for number in range(1_500)}])
def test_a_form_that_would_fill_the_page_is_not_repeated(item: Any, client: Client, settings: Any) -> None:
    """As hidden fields, it could be six times as long, and Django reads no form with so many fields."""
    settings.IDEMPOTENCY = {"PAUSED": True}
    answer = client.post("/order/", item, headers=BROWSER)
    assert (answer.status_code, answer["Content-Type"]) == (503, "text/html; charset=utf-8")
    assert b"<input" not in answer.content
    assert len(answer.content) < 5_000
