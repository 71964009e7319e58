"""Which `reconcile` a recovery calls for an operation, and what the log and the signal say about it."""

from __future__ import annotations

import logging
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.http import HttpResponse
from django.utils import timezone
from django.views import View

from django_idempotency import idempotent
from django_idempotency.engine.stores.sealing import seal, unseal
from django_idempotency.maintenance import Asked, in_doubt, recover_idempotency_keys
from django_idempotency.maintenance.recovery import ask, can_be_asked
from django_idempotency.models import IdempotencyKey
from django_idempotency.testing import create_key
from django_idempotency.views import IdempotencyMixin
from tests.at_rest import NEW, OLD
from tests.heard import heard
from tests.leased_urls import HOOKS
from tests.recovering import only, recover
from tests.views import answers, view_class

pytestmark = [pytest.mark.django_db, pytest.mark.urls("tests.leased_urls")]
PAY = "POST pay/reconcile"


def must_not_run(operation: Any) -> None:
    raise AssertionError


def must_not_run_either(operation: Any) -> None:
    raise AssertionError


def two_views(operation: str) -> None:
    for reconcile in (must_not_run, must_not_run_either):
        idempotent(lease=60, operation=operation, reconcile=reconcile)(answers())


def a_view_that_decides_by_request(operation: str) -> None:
    class Pay(view_class(IdempotencyMixin, View, post=answers())):
        idempotency = {"lease": 60, "operation": operation, "reconcile": must_not_run}

        def get_idempotency_options(self) -> Any: ...

    Pay.as_view()


@pytest.mark.parametrize(
    ("declare", "reason"),
    [
        (two_views, "several views with different reconcile functions have this operation"),
        (a_view_that_decides_by_request, "its view decides its options for each request (get_idempotency_options)"),
    ],
)
def test_where_it_is_not_clear_how_no_reconcile_is_called(declare: Any, reason: str) -> None:
    """A guess could complete the key with another view's answer. The keys are one line of the output."""
    operation = f"declared by {declare.__name__}"
    declare(operation)
    key = create_key(operation=operation, in_doubt=["charge"])
    told = Asked(reference="", operation=operation, outcome="left", reason=reason)
    assert (recover()[1], str(told)) == ([told], f"1 key of {operation}: left, {reason}.")
    assert can_be_asked(operation) is False
    alone = Asked(reference=key.reference, operation=operation, outcome="left", reason=reason)
    assert ask(key, by="ann", reason="T-1") == alone
    assert in_doubt().get().attempt == 1


def test_the_views_are_imported_first(settings: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that serves no requests has not imported them. Otherwise, all keys would wait."""
    (tmp_path / "urls_of_late_views.py").write_text(
        "from django_idempotency import idempotent\n"
        "from tests.leased_urls import reconciled\n"
        "from tests.views import answers\n"
        "idempotent(lease=60, operation='late', reconcile=reconciled)(answers())\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    settings.ROOT_URLCONF = "urls_of_late_views"
    create_key(operation="late", in_doubt=["charge"])
    HOOKS["reconcile"] = lambda operation: HttpResponse()
    assert [asked.outcome for asked in recover()[1]] == ["completed"]


def test_a_project_without_urls_can_recover(settings: Any) -> None:
    """Such as one of tasks only."""
    del settings.ROOT_URLCONF
    create_key(operation=PAY, in_doubt=["charge"])
    HOOKS["reconcile"] = lambda operation: HttpResponse()
    assert [asked.outcome for asked in recover()[1]] == ["completed"]


def test_the_key_that_has_waited_longest_comes_first() -> None:
    """Otherwise, a time limit could skip the same key every time. A key with a new attempt is left to its client."""
    order: list[str] = []

    def settle(operation: Any) -> HttpResponse:
        order.append(operation.key)
        IdempotencyKey.objects.filter(key="retried").update(attempt=2)
        return HttpResponse()

    for key, hours in (("second", 3), ("third", 2), ("retried", 1), ("first", 4)):
        create_key(key, operation=PAY, in_doubt=["charge"])
        IdempotencyKey.objects.filter(key=key).update(updated_at=timezone.now() - timedelta(hours=hours))
    HOOKS["reconcile"] = settle
    recovered = recover_idempotency_keys(older_than=0)
    assert (order, recovered.completed, recovered.left) == (["first", "second", "third"], 3, 1)


def test_a_trail_that_was_damaged_stays_as_it_is() -> None:
    """The key is completed all the same, and the next one is reached."""
    for key in ("damaged", "whole"):
        create_key(key, operation=PAY, in_doubt=["charge"])
    IdempotencyKey.objects.filter(key="damaged").update(decisions="7", updated_at=timezone.now() - timedelta(hours=1))
    HOOKS["reconcile"] = lambda operation: HttpResponse()
    assert [asked.outcome for asked in recover()[1]] == ["completed", "completed"]
    assert IdempotencyKey.objects.get(key="damaged").decisions == "7"


def test_a_text_is_no_list_of_operations() -> None:
    """Its letters would be operations without keys, and nothing would be recovered."""
    with pytest.raises(ValueError, match=r"^operations='POST pay': pass a list of names, such as \['POST pay'\]\.$"):
        recover_idempotency_keys(operations="POST pay")


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("scope", ["s", "x" * 300])
def test_a_key_is_completed_under_its_own_identity(scope: str) -> None:
    """Also if its scope is stored as a hash. The signal names the key, so the metrics count it."""
    row = create_key("k", scope=scope, operation=PAY, in_doubt=["charge"])
    HOOKS["reconcile"] = lambda operation: HttpResponse(status=201)
    with heard("completed") as events:
        asked = only()
    assert (asked.outcome, IdempotencyKey.objects.get().status) == ("completed", "completed")
    (event,) = events
    about = event["identity"]
    assert (about.scope, about.operation, about.key, event["using"]) == (row.scope, PAY, "k", "default")


@pytest.mark.django_db(databases=["default", "other"])
@pytest.mark.parametrize("by_hand", [False, True])
def test_each_key_has_a_record_in_the_log(by_hand: bool, caplog: pytest.LogCaptureFixture) -> None:
    """Without the key itself. A person's question from the admin has the same."""
    caplog.set_level(logging.INFO, "django_idempotency")
    row = create_key("k", operation=PAY, in_doubt=["charge", "refund"], using="other")
    HOOKS["reconcile"] = lambda operation: None
    if by_hand:
        ask(row, by="ann", reason="T-1")
    else:
        recover(using="other")
    record = caplog.records[-1]
    assert record.getMessage() == (
        f"Idempotency key {row.reference} POST pay/reconcile: left, reconcile has left the key to the next retry. "
        "In doubt: charge, refund."
    )
    facts = {
        "event": "recovery",
        "operation": PAY,
        "key_reference": row.reference,
        "database": "other",
        "outcome": "left",
    }
    assert {name: vars(record).get(name) for name in facts} == facts


def test_all_that_it_has_recorded_is_named() -> None:
    """In the order of the names, as the trail keeps it."""
    create_key(operation=PAY, in_doubt=["refund", "charge"])

    def records(operation: Any) -> None:
        for name in ("refund", "charge"):
            operation.call(name, lambda: 1)

    HOOKS["reconcile"] = records
    asked = only()
    assert asked.reason == "reconcile has recorded charge, refund, and has left the key to the next retry"


@pytest.mark.parametrize(("found", "error"), [(OLD, "it timed out"), (NEW, "ENCRYPTION_KEYS")])
def test_an_encrypted_error_stays_the_last_error(settings: Any, found: str, error: str) -> None:
    """If its encryption key is lost, the error says so."""
    settings.IDEMPOTENCY = {"ENCRYPTION_KEYS": [OLD]}
    row = create_key(operation=PAY, in_doubt=["charge"])
    IdempotencyKey.objects.update(last_error=seal(row, "last_error", "it timed out"))
    settings.IDEMPOTENCY = {"ENCRYPTION_KEYS": [found]}
    HOOKS["reconcile"] = lambda operation: None
    assert [asked.outcome for asked in recover()[1]] == ["left"]
    row.refresh_from_db()
    assert error in (unseal(row, "last_error", row.last_error) or "")
