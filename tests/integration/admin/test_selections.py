"""One decision about the keys that are ticked in the list."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from django_idempotency.maintenance import record_outcome
from django_idempotency.maintenance.decisions import decisions_of
from django_idempotency.models import IdempotencyKey
from tests.admin_pages import LIST, make_key, staff, step
from tests.at_rest import NEW, OLD

pytestmark = pytest.mark.django_db
ANSWER = {"status": 410, "content_type": "application/json", "body": '{"detail": "cancelled"}'}


@pytest.fixture
def keys() -> list[IdempotencyKey]:
    rows = [make_key(f"k-{number}", status="failed", policy="retry") for number in range(3)]
    for row in rows:
        step(row)
    return rows


def send(client: Client, action: str, rows: list[IdempotencyKey], **data: Any) -> Any:
    ticked = [str(row.pk) for row in rows]
    return client.post(reverse(LIST), {"action": action, "index": "0", "_selected_action": ticked, **data}, follow=True)


def confirm(client: Client, action: str, rows: list[IdempotencyKey], **data: Any) -> Any:
    """Enter the form of the second page, and confirm its preview."""
    seen = [f"{row.pk}:{row.attempt}" for row in rows]
    given = {"decided": "1", "seen": seen, "reason": "T-7", **data}
    page = send(client, action, rows, **given)
    previewed = (page.context or {}).get("previewed")
    return send(client, action, rows, **given, previewed=previewed) if previewed else page


def statuses() -> list[str]:
    return list(IdempotencyKey.objects.order_by("pk").values_list("status", flat=True))


def test_they_are_answered_by_hand(operator: Client, keys: list[IdempotencyKey]) -> None:
    """Each key says who, why and with what; the others are left alone."""
    page = confirm(operator, "answer_selected", keys[:2], **ANSWER).content.decode()
    assert "2 keys: Answered by hand with status 410." in page
    assert statuses() == ["completed", "completed", "failed"]
    trail = [decisions_of(row) for row in IdempotencyKey.objects.order_by("pk")]
    assert [[(made.action, made.reason) for made in made_] for made_ in trail] == [[("answer", "T-7")]] * 2 + [[]]
    assert LogEntry.objects.count() == 2


def test_they_are_released(operator: Client, keys: list[IdempotencyKey]) -> None:
    """The danger is named first."""
    page = send(operator, "release_selected", keys).content.decode()
    assert "the customer may be charged twice" in page
    assert "3 keys have a call in doubt." in page
    assert all(f">{row.key}</a>" in page for row in keys)
    assert IdempotencyKey.objects.filter(steps__isnull=False).count() == 3
    confirm(operator, "release_selected", keys)
    assert IdempotencyKey.objects.filter(steps__isnull=False).count() == 0


def test_under_hold_the_operator_has_looked(operator: Client, keys: list[IdempotencyKey]) -> None:
    """One held key is enough."""
    IdempotencyKey.objects.filter(pk=keys[0].pk).update(policy="hold")
    page = confirm(operator, "release_selected", keys).content.decode()
    assert "Look first. Under “hold” no call may be made twice." in page
    assert IdempotencyKey.objects.filter(steps__isnull=False).count() == 3
    confirm(operator, "release_selected", keys, looked="on")
    assert IdempotencyKey.objects.filter(steps__isnull=False).count() == 0


@pytest.mark.parametrize("what", ["a write in doubt", "no lease"])
def test_what_is_never_repeated_needs_a_look(operator: Client, keys: list[IdempotencyKey], what: str) -> None:
    """Also under "retry", which speaks of calls: a repeated write is a second order."""
    if what == "no lease":
        IdempotencyKey.objects.filter(pk=keys[0].pk).update(status="in_progress", locked_until=None)
        keys[0].steps.all().delete()
    else:
        keys[0].steps.update(kind="write")
    page = confirm(operator, "release_selected", keys).content.decode()
    assert "Look first." in page
    assert IdempotencyKey.objects.exclude(decisions=None).count() == 0


def test_a_reason_is_needed_and_the_body_checked(operator: Client, keys: list[IdempotencyKey]) -> None:
    """As on the page of one key."""
    assert "This field is required" in confirm(operator, "answer_selected", keys, **ANSWER, reason="").content.decode()
    broken = {**ANSWER, "body": "{"}
    assert "This is not JSON" in confirm(operator, "answer_selected", keys, **broken).content.decode()
    assert statuses() == ["failed"] * 3


def test_a_key_that_has_changed_is_left_alone(operator: Client, keys: list[IdempotencyKey]) -> None:
    """A worker has started another attempt, or holds the key, since the page was opened."""
    IdempotencyKey.objects.filter(pk=keys[0].pk).update(attempt=2)
    later = timezone.now() + timedelta(hours=1)
    IdempotencyKey.objects.filter(pk=keys[1].pk).update(status="in_progress", locked_until=later)
    page = confirm(operator, "answer_selected", keys, **ANSWER).content.decode()
    assert "1 key: Answered by hand with status 410." in page
    assert "2 keys were left as they are: they have changed, or a worker holds them." in page
    assert statuses() == ["failed", "in_progress", "completed"]


def test_what_was_not_ticked_is_never_decided(operator: Client, keys: list[IdempotencyKey]) -> None:
    """Not by "select all", and not by other numbers in the form."""
    confirm(operator, "answer_selected", keys[:1], **ANSWER, select_across="1")
    confirm(operator, "answer_selected", keys[1:2], **ANSWER, seen=["x", f"{keys[2].pk}", f"{keys[2].pk}:1"])
    assert statuses() == ["completed", "failed", "failed"]
    assert "data-actions-icnt" in operator.get(reverse(LIST)).content.decode()


def test_completed_keys_need_no_decision(operator: Client) -> None:
    """The page says so."""
    page = send(operator, "release_selected", [make_key()]).content.decode()
    assert "There is nothing to decide about these keys now." in page


@pytest.mark.parametrize("action", ["answer_selected", "release_selected"])
def test_it_needs_the_permission(keys: list[IdempotencyKey], action: str) -> None:
    """Without it, there are no actions, and a forged form does nothing."""
    client = staff("view_idempotencykey", "view_response")
    assert 'name="action"' not in client.get(reverse(LIST)).content.decode()
    confirm(client, action, keys, **ANSWER, looked="on")
    assert statuses() == ["failed"] * 3
    assert IdempotencyKey.objects.filter(steps__isnull=False).count() == 3


def test_the_keys_need_the_permission_for_responses(keys: list[IdempotencyKey]) -> None:
    """References are shown instead."""
    client = staff("view_idempotencykey", "resolve_idempotencykey")
    page = send(client, "release_selected", keys).content.decode()
    assert keys[0].reference in page
    assert ">k-0<" not in page


def test_a_key_that_cannot_be_decrypted_does_not_stop_the_others(
    operator: Client, keys: list[IdempotencyKey], settings: Any
) -> None:
    """The page says which encryption key is missing."""
    settings.IDEMPOTENCY = {"ENCRYPTION_KEYS": [OLD]}
    record_outcome(keys[0].pk, "charge", 1, attempt=1)
    kept = IdempotencyKey.objects.get(pk=keys[0].pk).decisions
    settings.IDEMPOTENCY = {"ENCRYPTION_KEYS": [NEW]}
    page = confirm(operator, "answer_selected", keys, **ANSWER).content.decode()
    assert statuses() == ["failed", "completed", "completed"]
    assert IdempotencyKey.objects.get(pk=keys[0].pk).decisions == kept
    assert page.count("What is stored in &#x27;decisions&#x27;") == 1
    assert "2 keys: Answered by hand" in page
    assert "1 key was left as it is" in page
