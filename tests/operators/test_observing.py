"""observe=True: the view always runs, and the log says what would have happened."""

from __future__ import annotations

import logging
from collections.abc import Callable
from io import BytesIO
from typing import Any

import pytest
from django.db import connection, transaction
from django.http import HttpRequest, HttpResponse, JsonResponse, UnreadablePostError
from django.http.multipartparser import MultiPartParserError
from django.test import RequestFactory
from django.urls import path

from django_idempotency import idempotent
from django_idempotency.engine.protocol.digests import identify
from django_idempotency.engine.stores import _store
from django_idempotency.maintenance import needs_attention
from django_idempotency.models import IdempotencyKey
from django_idempotency.testing import create_key
from tests.heard import heard
from tests.shopapp.models import Order
from tests.unreachable import UNREACHABLE, reached_by

Post = Callable[..., Any]
HOOKS: dict[str, Callable[..., Any]] = {}


@idempotent(observe=True)
def create(request: HttpRequest) -> HttpResponse:
    order = Order.objects.create()
    HOOKS.get("view", lambda request: None)(request)
    body = {"id": order.pk, "atomic": connection.in_atomic_block}
    return JsonResponse(body, status=int(request.GET.get("status", 201)))


@idempotent(observe=True, lease=60)
def leased(request: HttpRequest) -> HttpResponse:
    order = request.idempotency.write("order", Order.objects.create)  # type: ignore[attr-defined]
    return JsonResponse({"id": order.pk}, status=201)


@idempotent(observe=True, anonymous="refuse")
def refusing(request: HttpRequest) -> HttpResponse:
    return HttpResponse("ran")


@idempotent(observe=True, scope=lambda request: None)
def misconfigured(request: HttpRequest) -> HttpResponse:
    return HttpResponse("ran")


enforced = idempotent(operation="POST create")(create.__wrapped__)  # type: ignore[attr-defined]
elsewhere = idempotent(observe=True, using="other", operation="POST create")(create.__wrapped__)  # type: ignore[attr-defined]
urlpatterns = [
    path("elsewhere", elsewhere),
    path("create", create),
    path("leased", leased),
    path("refusing", refusing),
    path("misconfigured", misconfigured),
    path("enforced", enforced),
]
pytestmark = [pytest.mark.django_db, pytest.mark.urls("tests.operators.test_observing")]


@pytest.fixture(autouse=True)
def _clean(caplog: pytest.LogCaptureFixture) -> None:
    HOOKS.clear()
    caplog.set_level(logging.WARNING, logger="django_idempotency")


def reference(key: str) -> str:
    return identify(scope="", operation="", key=key).reference


def logged(caplog: pytest.LogCaptureFixture) -> list[str]:
    """But that the view is only observed, which each process says once: test_switched_off.py."""
    said = [r.getMessage() for r in caplog.records if r.name == "django_idempotency"]
    return [message for message in said if "runs without protection" not in message]


@pytest.mark.parametrize("url", ["/create", "/leased"])
def test_a_retry_runs_again_and_is_logged(post: Post, key: str, caplog: pytest.LogCaptureFixture, url: str) -> None:
    """Nothing is replayed, and no header claims that a key was honoured."""
    first, second = post(url), post(url)
    assert [first.status_code, second.status_code] == [201, 201]
    assert first.json()["id"] != second.json()["id"]
    assert "Idempotency-Replayed" not in second.headers
    assert logged(caplog) == [f"Observed: POST {url[1:]} would have been replayed (key {reference(key)})."]
    assert IdempotencyKey.objects.get().status == "completed"


def test_what_would_have_been_refused(post: Post, key: str, caplog: pytest.LogCaptureFixture) -> None:
    """Missing, malformed, reused, still running, unknown caller: each runs."""
    HOOKS["view"] = lambda request: HOOKS.clear() or post("/create")
    answers = [
        post("/create", key=None),
        post("/create", key='"unterminated'),
        post("/create", {"a": 1}),
        post("/refusing"),
    ]
    assert {answer.status_code for answer in answers} == {200, 201}
    assert logged(caplog)[-3:] == [
        "Observed: POST create would have been refused with 400: Idempotency-Key is not valid.",
        "Observed: POST create would have been refused with 422: Idempotency-Key is already used "
        f"(key {reference(key)}).",
        "Observed: POST refusing would have been refused with 403: Idempotency-Key needs an identified caller.",
    ]
    assert logged(caplog)[0] == "Observed: POST create would have been refused with 400: Idempotency-Key is missing."


def test_failures_free_the_key(post: Post, caplog: pytest.LogCaptureFixture) -> None:
    """As they would: no line for the retry."""

    def fail(request: HttpRequest) -> None:
        raise ValueError("the view fails")

    HOOKS["view"] = fail
    with pytest.raises(ValueError, match="the view fails"):
        post("/create")
    assert str(IdempotencyKey.objects.get().last_error).startswith(f"ValueError: line 118 of {__name__}.")
    HOOKS.clear()
    assert [post("/create?status=503", key="other").status_code for _ in range(2)] == [503, 503]
    assert post("/create").status_code == 201
    assert logged(caplog) == []


def test_our_own_trouble_is_not_the_clients(post: Post, caplog: pytest.LogCaptureFixture) -> None:
    """Logged as an error, and the view runs."""
    assert post("/misconfigured").content == b"ran"
    HOOKS["view"] = lambda request: IdempotencyKey.objects.all().delete()
    assert post("/create").status_code == 201
    assert logged(caplog) == ["Observing an idempotency key failed; the request goes on."] * 2


def test_an_error_of_record_is_not_the_clients(rf: RequestFactory, caplog: pytest.LogCaptureFixture) -> None:
    """Not even of a query, which would break the caller's transaction on PostgreSQL."""

    def record(response: HttpResponse) -> bool:
        connection.cursor().execute("SELECT no_such_column")
        return True

    view = idempotent(observe=True, record=record, scope=lambda request: "s")(lambda request: HttpResponse("ran"))
    with transaction.atomic():
        assert view(rf.post("/", headers={"Idempotency-Key": "k"})).content == b"ran"
        assert IdempotencyKey.objects.get().status == "in_progress"
    assert logged(caplog) == ["Observing an idempotency key failed; the request goes on."]


def test_each_request_is_reported_once_as_unprotected(post: Post) -> None:
    """Whether it would have been replayed, refused or run: no other event is sent."""
    with heard() as events:
        for sent in ({}, {}, {"key": None}, {"key": '"unterminated'}):
            post("/create", **sent)
    assert [each["event"] for each in events] == ["unprotected"] * 4


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("new_process", [False, True])
def test_a_database_that_cannot_be_reached_is_not_the_clients_trouble(rf: RequestFactory, new_process: bool) -> None:
    """Also for a process that has not asked yet what kind of database it is. The view runs."""
    if new_process:
        _store.cache_clear()
    view = idempotent(observe=True, scope=lambda request: "s")(lambda request: HttpResponse("ran"))
    with reached_by(UNREACHABLE[connection.vendor]):
        assert view(rf.post("/", headers={"Idempotency-Key": "k"})).content == b"ran"
    assert IdempotencyKey.objects.count() == 0


def test_while_the_view_runs_its_key_has_a_lease(post: Post) -> None:
    """So the key of a dead worker is not in progress for ever."""
    seen: list[Any] = []
    HOOKS["view"] = lambda request: seen.append(IdempotencyKey.objects.get())
    post("/create")
    assert (seen[0].status, seen[0].policy, seen[0].locked_until is None) == ("in_progress", "retry", False)
    assert IdempotencyKey.objects.get().locked_until is None


def test_no_record_makes_a_server_error_final(rf: RequestFactory) -> None:
    """As where the view is protected: `record` is not asked."""
    recording: Any = idempotent(observe=True, record=lambda response: True)(create.__wrapped__)  # type: ignore[attr-defined]
    for status in (500, 503):
        sent = rf.post(f"/?status={status}", headers={"Idempotency-Key": str(status)})
        assert recording(sent).status_code == status
    assert set(IdempotencyKey.objects.values_list("status", flat=True)) == {"failed"}


@pytest.mark.django_db(transaction=True)
def test_the_views_transaction_is_djangos(post: Post, monkeypatch: pytest.MonkeyPatch) -> None:
    """None, or that of ATOMIC_REQUESTS; inside another one our error spoils nothing."""
    assert post("/create").json()["atomic"] is False
    monkeypatch.setitem(connection.settings_dict, "ATOMIC_REQUESTS", True)
    assert post("/create").json()["atomic"] is True
    monkeypatch.setitem(connection.settings_dict, "ATOMIC_REQUESTS", False)
    HOOKS["view"] = lambda request: IdempotencyKey.objects.all().delete()
    with transaction.atomic():
        assert post("/create", key="other").status_code == 201
    assert Order.objects.count() == 3


def test_once_enforced_what_was_observed_is_not_run_again(post: Post) -> None:
    """A tombstone: the response was not stored."""
    assert post("/create").status_code == 201
    IdempotencyKey.objects.update(fingerprint=None)
    answer = post("/enforced")
    assert (answer.status_code, answer.json()["code"]) == (409, "response-not-stored")
    assert Order.objects.count() == 1


@pytest.mark.django_db(databases=["default", "other"])
@pytest.mark.parametrize(
    ("url", "using", "instead"),
    [
        ("/leased", "default", "continued after its stored steps"),
        ("/create", "default", "refused with 409: The outcome for this Idempotency-Key is unknown"),
        ("/elsewhere", "other", "refused with 409: The outcome for this Idempotency-Key is unknown"),
    ],
)
@pytest.mark.parametrize("steps", [{"in_doubt": ["charge"], "on_abandoned": "hold"}, {"steps": {"charge": 1}}])
def test_what_a_protected_request_left_unfinished_stays_so(
    post: Post, key: str, caplog: pytest.LogCaptureFixture, steps: Any, url: str, using: str, instead: str
) -> None:
    """The view runs, and whoever looks for the charge still finds it. In one transaction, it could not go on."""
    operation = "POST leased" if url == "/leased" else "POST create"
    left = create_key(key, scope="anonymous", operation=operation, using=using, **steps)
    assert post(url).status_code == 201
    assert needs_attention(using=using).get() == left
    assert logged(caplog) == [f"Observed: {operation} would have been {instead} (key {reference(key)})."]
    left.refresh_from_db()
    assert (left.attempt, left.policy) == (1, steps.get("on_abandoned", "retry-keyed"))


@pytest.mark.parametrize(
    ("content_type", "error"),
    [("application/x-www-form-urlencoded", UnreadablePostError), ("multipart/form-data", MultiPartParserError)],
)
def test_a_body_that_was_lost_is_not_taken_for_an_empty_one(
    rf: RequestFactory, content_type: str, error: type[Exception]
) -> None:
    """The client has gone away while it was read, or has named no boundary: the view does not run with nothing."""

    class Gone(BytesIO):
        def read(self, *args: Any) -> bytes:
            raise OSError("the client has gone away")

    view = idempotent(observe=True)(lambda request: JsonResponse(request.POST))
    sent: Any = {"headers": {"Idempotency-Key": "k"}, "wsgi.input": Gone()}
    with pytest.raises(error):
        view(rf.generic("POST", "/", b"a=1&b=2", content_type=content_type, **sent))


def test_an_upload_that_was_cut_off_is_no_error_of_ours(rf: RequestFactory, caplog: pytest.LogCaptureFixture) -> None:
    """Any client can send one, so there is one line and no traceback. The view decides what becomes of it."""
    view = idempotent(observe=True)(lambda request: JsonResponse({}))
    sent: Any = {"headers": {"Idempotency-Key": "k"}, "wsgi.input": BytesIO(b"a"), "CONTENT_LENGTH": "10"}
    assert view(rf.generic("POST", "/", content_type="text/plain", **sent)).status_code == 200
    (record,) = (one for one in caplog.records if "without protection" not in one.getMessage())
    assert (record.levelname, record.exc_info) == ("WARNING", None)
    assert record.getMessage() == (
        "Observed: a request would have been refused with 400. The request's body ended before its Content-Length."
    )
