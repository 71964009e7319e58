"""Events of requests that are refused without a claim: no usable key, no permission, no answer."""

from __future__ import annotations

import logging
from collections.abc import Callable
from threading import Event
from typing import Any

import pytest
from django.db import connection, transaction
from django.http import HttpResponse
from django.test import Client

from django_idempotency import StoreBusy, run_once
from tests.factories import UserFactory
from tests.heard import heard, refusals

Post = Callable[..., Any]
pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.urls("tests.integration.view_urls")]


def _error(request: Any, problem: Any) -> HttpResponse:
    return HttpResponse(problem.code, status=problem.status)


@pytest.mark.parametrize("format_", [None, _error])
@pytest.mark.parametrize(("key", "event"), [(None, "missing"), ("a secret", "invalid")])
@pytest.mark.usefixtures("atomic_requests")
def test_a_request_without_a_usable_key_is_told(
    post: Post, key: str | None, event: str, format_: Any, settings: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """In the project's own format of errors, too, and also under ATOMIC_REQUESTS. Only the operation is known."""
    settings.IDEMPOTENCY = {"ERROR_RESPONSE": format_}
    caplog.set_level(logging.INFO, "django_idempotency")
    with heard() as events:
        assert post("/create", key=key).status_code == 400
    (told,) = events
    about = told["identity"]
    assert (told["event"], told["attempt"], told["reason"]) == (event, None, "")
    assert (about.operation, about.scope, about.key, about.reference) == ("POST create", "", "", "")
    (record,) = (record for record in caplog.records if record.name == "django_idempotency")
    assert record.getMessage() == f"Idempotency key (none) of POST create: {event}."
    assert (record.levelname, vars(record)["key_reference"]) == ("INFO", "")
    assert "secret" not in str(vars(record))


@pytest.mark.parametrize("path", ["/optional", "/known_callers"])
def test_other_requests_are_not_told(post: Post, path: str) -> None:
    """A key that is not required is not missing. A caller without an identity is refused for another reason."""
    with refusals() as told:
        status = post(path, **({"key": None} if path == "/optional" else {})).status_code
    assert (status, told) == (200 if path == "/optional" else 403, [])


def test_a_replay_that_the_project_keeps_back_is_told(post: Post) -> None:
    """It is no replay."""
    client = Client()
    client.force_login(UserFactory())
    post("/mine", client=client)
    with heard() as events:
        assert post("/mine", client=client, headers={"X-Denied": "1"}).status_code == 403
    assert [event["event"] for event in events] == ["replay_refused"]


@pytest.mark.parametrize("lease", [None, 60])
@pytest.mark.only_on("sqlite")
def test_a_busy_store_is_told(in_threads: Any, caplog: pytest.LogCaptureFixture, lease: int | None) -> None:
    """Nothing has run. A client alone cannot cause it: it is a warning."""
    locked, answered = Event(), Event()

    def write() -> None:
        with transaction.atomic():
            locked.set()
            assert answered.wait(30)

    def ask() -> None:
        assert locked.wait(30)
        with connection.cursor() as cursor:
            cursor.execute("PRAGMA busy_timeout = 0")
        try:
            with pytest.raises(StoreBusy):
                run_once(lambda *operation: 1, scope="s", key="k", operation="o", lease=lease)
        finally:
            answered.set()

    with refusals() as told:
        in_threads(2, lambda number: (write, ask)[number]())
    assert told == [("busy", "o")]
    assert [record.levelname for record in caplog.records] == ["WARNING"]
