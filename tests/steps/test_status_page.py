"""The status page of a leased request. What it must not tell, and to whom, is in tests/attacks/test_stored.py."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from django.test import override_settings
from django.urls import path

from django_idempotency import IdempotencyConfigurationError, idempotent, run_once
from django_idempotency.engine.protocol.digests import identify
from django_idempotency.engine.request.responses import accepted, status_url
from django_idempotency.models import IdempotencyKey
from tests.leased_urls import HOOKS, hooked
from tests.leases import Broken, as_if_killed, breaks

Post = Callable[..., Any]
LEASED: dict[str, Any] = {"lease": 60, "operation": "o"}
urlpatterns = [path("poll", idempotent(lease=60, in_progress_status=202)(hooked))]
"""Without the status page."""
pytestmark = [pytest.mark.django_db, pytest.mark.urls("tests.leased_urls")]


class TestStatusPage:
    def test_a_duplicate_is_told_where_to_look(self, post: Post, client: Any) -> None:
        """202, Location, Retry-After; the page follows the operation to its end and never shows the response."""
        inner: list[Any] = []

        def look(operation: Any) -> None:
            accepted = post("/pay/poll")
            inner.extend([accepted, client.get(accepted.headers["Location"])])

        HOOKS["between"] = look
        final = post("/pay/poll")
        accepted, page = inner
        assert (accepted.status_code, accepted.headers["Retry-After"]) == (202, "1")
        assert accepted.headers["Idempotency-Replayed"] == "false"
        assert (accepted.json()["code"], "code" in page.json()) == ("in-progress", False)
        for answer in (accepted, page):
            assert {k: answer.json()[k] for k in ("status", "attempt", "steps", "completed_at")} == {
                "status": "in_progress",
                "attempt": 1,
                "steps": ["charge"],
                "completed_at": None,
            }
        assert (page.status_code, page.headers["Retry-After"]) == (200, "1")
        assert "no-store" in page.headers["Cache-Control"]
        assert client.post(accepted.headers["Location"]).status_code == 405
        done = client.get(accepted.headers["Location"])
        assert (done.json()["status"], done.json()["steps"]) == ("completed", ["charge", "order"])
        assert set(done.json()) == {"status", "attempt", "steps", "created_at", "completed_at", "expires_at"}
        assert "Retry-After" not in done.headers
        assert final.json()["charge"].encode() not in done.content

    @pytest.mark.django_db(databases=["default", "other"])
    def test_its_address_is_of_one_row(self, client: Any) -> None:
        """A row with one of the two hashes is another request. So is the same key on another alias."""
        other = IdempotencyKey.objects.using("other")
        for scope, key, using in (("s", "k2", "other"), ("s2", "k", "other"), ("s", "k", "default")):
            run_once(lambda operation: None, scope=scope, key=key, using=using, **LEASED)
            IdempotencyKey.objects.using(using).update(created_at="2020-01-01T00:00Z")

        run_once(lambda operation: operation.call("charge", str), scope="s", key="k", using="other", **LEASED)
        row = other.get(scope="s", key="k")
        other.filter(key="k2").update(scope_hash=row.scope_hash)
        found = status_url("other", row.key_hash, row.scope_hash, row.created_at)
        told = accepted("other", identify(scope="s", operation="o", key="k"))
        assert told.headers["Location"] == found
        for state in (json.loads(told.content), client.get(found).json()):
            assert (state["status"], state["steps"]) == ("completed", ["charge"])

    def test_a_duplicate_whose_row_has_just_gone_is_told_the_same(self, client: Any) -> None:
        """The first request has failed meanwhile. The page is 404, and the client sends its request again."""
        told = accepted("default", identify(scope="s", operation="o", key="k"))
        assert json.loads(told.content) == {"code": "in-progress", "status": "in_progress"}
        assert client.get(told.headers["Location"]).status_code == 404

    @override_settings(SECRET_KEY="a secret")
    def test_its_address_stays_the_same_from_release_to_release(self) -> None:
        """A client asks for it while the servers are upgraded one by one."""
        found = status_url("default", 1, -2, datetime(2026, 1, 2, tzinfo=UTC))
        assert found == "/status/status/oYDGqbUpjxIzOTcFofUxlV6LWSeU2Th0bcIFJOLGGn8imEst3xqrA2RlZmF1bHQ"

    def test_an_abandoned_operation_is_not_polled_for_ever(self, post: Post, client: Any) -> None:
        """Nobody works on it until the client sends its request again."""
        inner: list[Any] = []
        HOOKS["between"] = lambda operation: inner.append(post("/pay/poll")) or breaks()
        with pytest.raises(Broken):
            post("/pay/poll")
        location = inner[0].headers["Location"]
        assert client.get(location).json()["status"] == "failed"
        as_if_killed()
        page = client.get(location)
        assert (page.json()["status"], "Retry-After" in page.headers) == ("abandoned", False)

    @pytest.mark.urls("tests.steps.test_status_page")
    def test_a_project_without_it_is_told(self, post: Post) -> None:
        """With the line to add."""
        HOOKS["view"] = lambda request: post("/poll")
        with pytest.raises(IdempotencyConfigurationError, match=r'include\("django_idempotency.urls"\)'):
            post("/poll")
