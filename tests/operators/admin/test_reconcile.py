"""The button that asks the project's `reconcile` about one key, now."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.db import connections
from django.http import HttpResponse
from django.test import Client
from django.urls import resolve

from django_idempotency import IdempotencyConfigurationError
from django_idempotency.maintenance.decisions import decisions_of
from django_idempotency.models import IdempotencyKey
from tests.admin_pages import address, decide, detail, make_key, staff
from tests.leased_urls import HOOKS, leave_in_doubt
from tests.leases import breaks, row
from tests.step_rows import add_step

Post = Callable[..., Any]
pytestmark = [pytest.mark.django_db, pytest.mark.urls("tests.admin_urls")]
BUTTON = 'class="button" href="../reconcile/"'


@pytest.fixture
def doubt(post: Post) -> IdempotencyKey:
    leave_in_doubt(post, "/pay/reconcile")
    return row()


def test_it_completes_the_key_and_says_who_asked(operator: Client, post: Post, doubt: IdempotencyKey) -> None:
    """Nobody waits for cron. The button comes first, because it can do no harm."""
    page = operator.get(detail(doubt)).content.decode()
    assert page.index(BUTTON) < page.index('href="../record/"')
    HOOKS["reconcile"] = lambda operation: HttpResponse("by reconcile", status=201)
    assert "Completed: reconcile has answered 201" in decide(operator, doubt, "reconcile")
    (made,) = decisions_of(row())
    assert (made.action, made.reason, row().status) == ("recover", "T-7", "completed")
    assert f"{made.by}: reconcile has answered 201" in operator.get(detail(doubt)).content.decode()
    assert LogEntry.objects.get().get_change_message() == "completed: reconcile has answered 201"
    assert post("/pay/reconcile").content == b"by reconcile"


@pytest.mark.parametrize(
    ("reconcile", "told"),
    [
        (lambda operation: None, "Left: reconcile has left the key to the next retry. In doubt: charge"),
        (breaks, "Failed: reconcile raised tests.leases.Broken: line 19 of tests.leases.breaks"),
    ],
)
def test_what_it_does_not_know_is_told(
    operator: Client, doubt: IdempotencyKey, reconcile: Callable[..., Any], told: str
) -> None:
    """And the key waits as before."""
    HOOKS["reconcile"] = reconcile
    assert told in decide(operator, doubt, "reconcile")
    assert (row().status, row().unknown) == ("failed", 1)


def test_a_key_that_its_caller_completed_under_another_name_is_not_asked_about(
    operator: Client, doubt: IdempotencyKey
) -> None:
    """After a rename the retry has run there, and what `reconcile` makes here would be a second order."""
    HOOKS["reconcile"] = breaks
    make_key(doubt.key, scope=doubt.scope, operation="POST payments/")
    assert "its caller&#x27;s key is completed as &#x27;POST payments/&#x27;" in decide(operator, doubt, "reconcile")
    doubt.refresh_from_db()
    assert (doubt.status, doubt.unknown, doubt.decisions) == ("failed", 1, None)


def test_an_error_of_the_setup_is_a_message(
    operator: Client, doubt: IdempotencyKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as an open transaction around the admin: the page says what to change."""

    def refuses(*args: Any) -> None:
        raise IdempotencyConfigurationError("a transaction is open")

    monkeypatch.setattr("django_idempotency.engine.execution.leased.Leased.run", refuses)
    assert "A transaction is open" in decide(operator, doubt, "reconcile")
    assert LogEntry.objects.count() == 0


def test_a_view_with_impossible_options_does_not_close_its_keys_pages(
    operator: Client, doubt: IdempotencyKey, settings: Any
) -> None:
    """After a bad deployment, too, a person may have to decide."""
    settings.IDEMPOTENCY = {"TTL": 60}
    page = operator.get(detail(doubt))
    assert (page.status_code, BUTTON in page.content.decode()) == (200, False)


def test_it_is_not_in_the_transaction_of_a_request(doubt: IdempotencyKey) -> None:
    """Under ATOMIC_REQUESTS neither: the claim of the recovery commits before `reconcile` is asked."""
    view = resolve(address(doubt, "reconcile")).func
    assert (view._non_atomic_requests, hasattr(resolve(address(doubt, "release")).func, "_non_atomic_requests")) == (
        set(connections),
        False,
    )


@pytest.mark.parametrize(
    "fields",
    [
        {"operation": "POST pay/reconcile"},
        {"operation": "POST pay/reconcile", "status": "failed"},
        {"operation": "POST pay/reconcile", "status": "in_progress"},
        {"operation": "POST pay/hold", "status": "failed", "steps": "call"},
        {"operation": "POST pay/reconcile", "status": "failed", "steps": "write"},
    ],
    ids=["completed", "settled", "without a lease", "no reconcile", "write in doubt"],
)
def test_it_is_offered_only_where_a_recovery_would_ask(operator: Client, fields: dict[str, Any]) -> None:
    """Elsewhere it would do nothing."""
    kind = fields.pop("steps", None)
    key = make_key(**fields)
    if kind:
        add_step(key, kind=kind)
    assert BUTTON not in operator.get(detail(key)).content.decode()
    assert "Nothing to decide" in decide(operator, key, "reconcile")


def test_it_needs_the_permission_to_decide(doubt: IdempotencyKey) -> None:
    """It is a decision as any other."""
    client = staff("view_idempotencykey", "view_response")
    assert BUTTON not in client.get(detail(doubt)).content.decode()
    assert client.post(address(doubt, "reconcile"), {"reason": "T-7"}).status_code == 403
