"""`maintenance/decisions.py`: a trail that another version of this package has written, before it was rolled back."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from django.test import override_settings
from django.urls import reverse

from django_idempotency.maintenance import cleanup_idempotency_keys, close_with, record_outcome
from django_idempotency.maintenance.decisions import Decision, decisions_of
from django_idempotency.maintenance.resolution import Snapshot
from django_idempotency.models import IdempotencyKey
from tests.admin_pages import LIST, address, detail, make_key, staff, step
from tests.expired import make_keys, make_leased

pytestmark = [pytest.mark.django_db, pytest.mark.urls("tests.urls")]
KNOWN: dict[str, Any] = {"action": "release", "at": "2026-01-02T03:04:05+00:00", "by": "ann", "reason": "T-1"}
LATER = {**KNOWN, "ticket": "T-9"}
UNREADABLE = ["a text", 7, None, {}, {"by": "ann"}]
"""No dict, or without the names that each decision has."""


def trail(key: str) -> Any:
    return json.loads(IdempotencyKey.objects.get(key=key).decisions or "null")


def test_unknown_names_are_left_out() -> None:
    """What is known is shown."""
    key = make_key(decisions=json.dumps([LATER, *UNREADABLE]))
    assert decisions_of(key) == [Decision(**KNOWN)]


@pytest.mark.parametrize("entry", [LATER, *UNREADABLE])
def test_cleanup_goes_on(entry: Any) -> None:
    """The trail of a stuck key gets one entry more. The later version finds its own entry as it was."""
    make_keys(2)
    make_leased("stuck", "in_progress", lapsed=True, call=False)
    IdempotencyKey.objects.filter(key="stuck").update(decisions=json.dumps([entry]))
    cleaned = cleanup_idempotency_keys()
    assert (cleaned.deleted, cleaned.unstuck) == (2, 1)
    assert trail("stuck")[0] == entry
    assert [made["action"] for made in trail("stuck")[1:]] == ["fail"]


def test_decisions_go_on() -> None:
    make_leased("doubt", "failed", doubt=True)
    IdempotencyKey.objects.update(decisions=json.dumps([LATER, *UNREADABLE]))
    key = IdempotencyKey.objects.get()
    record_outcome(key.pk, "call", 1, attempt=1)
    close_with(key.pk, Snapshot(status_code=410, headers=(), body=b""), attempt=1)
    assert trail("doubt")[:6] == [LATER, *UNREADABLE]
    assert [made["action"] for made in trail("doubt")[6:]] == ["record", "answer"]


@pytest.mark.parametrize("entry", [LATER, *UNREADABLE])
def test_the_pages_are_shown(entry: Any) -> None:
    key = make_key(status="failed", policy="hold", completed_at=None, decisions=json.dumps([entry]))
    step(key)
    client = staff("view_idempotencykey", "view_response", "resolve_idempotencykey")
    for page in (reverse(LIST), detail(key), *(address(key, name) for name in ("record", "answer", "release"))):
        assert client.get(page).status_code == 200
    assert ("ann released the key" in client.get(detail(key)).content.decode()) is (entry is LATER)


class TestTimeZone:
    """`USE_TZ` was changed, as check W004 advises."""

    @override_settings(TIME_ZONE="Europe/Berlin")
    def test_a_time_without_a_zone_is_one_of_the_projects_zone(self) -> None:
        """As the clock of a project with `USE_TZ = False` has told it."""
        decision = Decision(action="release", at="2026-07-02T12:00:00")
        assert decision.moment == datetime(2026, 7, 2, 10, tzinfo=UTC)

    @override_settings(TIME_ZONE="Europe/Berlin", USE_TZ=False)
    def test_a_time_with_a_zone_is_told_in_the_projects_zone(self) -> None:
        """As Django tells all times then."""
        decision = Decision(action="release", at="2026-07-02T10:00:00+00:00")
        assert decision.moment == datetime(2026, 7, 2, 12)

    @pytest.mark.parametrize("use_tz", [True, False])
    def test_the_page_of_the_key_is_shown(self, use_tz: bool) -> None:
        """Its timeline sorts the times."""
        times = ("2026-01-02T03:04:05", "2026-01-02T03:04:05+00:00")
        key = make_key(decisions=json.dumps([{**KNOWN, "at": at} for at in times]))
        client = staff("view_idempotencykey")
        with override_settings(USE_TZ=use_tz):
            assert client.get(detail(key)).content.decode().count("ann released the key") == 3
