"""The state of a key at a glance."""

from __future__ import annotations

import re

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone

from django_idempotency.models import IdempotencyStep
from tests.admin_pages import HOUR, LIST, fill, make_key, step

pytestmark = pytest.mark.django_db


WORST = {
    "done": "completed",
    "live": "in flight",
    "live call": "in flight",
    "failed": "failed",
    "stuck": "stuck",
    "unleased": "stuck",
    "half": "half done",
    "stuck half": "half done",
    "doubt": "in doubt",
    "stuck doubt": "in doubt",
}


def test_each_key_has_one_badge_for_the_worst(admin_client: Client) -> None:
    """In doubt is worse than half done, and half done than stuck: money may have moved."""
    now = timezone.now()
    make_key("done")
    busy = {"status": "in_progress", "locked_until": now + HOUR}
    make_key("live", **busy)
    step(make_key("live call", **busy))
    step(make_key("failed", status="failed"), finished=True)
    IdempotencyStep.objects.filter(key__key="failed").update(kind="write")  # with nothing outside
    make_key("stuck", status="in_progress", locked_until=now - HOUR)
    make_key("unleased", status="in_progress")
    step(make_key("half", status="failed"), finished=True)
    step(make_key("stuck half", status="in_progress", locked_until=now - HOUR), finished=True)
    step(make_key("doubt", status="failed"))
    step(make_key("stuck doubt", status="in_progress", locked_until=now - HOUR))
    page = admin_client.get(reverse(LIST), {"p": "1"}).content.decode()
    rows = page[page.index("<tbody>") : page.index("</tbody>")].split("<tr>")[1:]
    found = {}
    for row in rows:
        badge = re.findall(r'<span aria-hidden="true">(.)</span> (.*?)</span>', row)
        key = re.findall(r"change/[^>]*>([^<]*)</a>", row)[0]
        assert len(badge) == 1
        found[key] = badge[0][1]
    assert found == WORST


@pytest.mark.parametrize(("status", "extra"), [("completed", 0), ("failed", 2)])
def test_badges_cost_two_queries_for_a_whole_page(admin_client: Client, status: str, extra: int) -> None:
    """None, if all keys are completed."""
    fill([timezone.now()] * 5, status=status)
    with CaptureQueriesContext(connection) as queries:
        admin_client.get(reverse(LIST), {"p": "1"})
    steps_and_leases = ("idempotencystep", 'locked_until" >', "locked_until` >")
    asked = [q["sql"] for q in queries if any(part in q["sql"] for part in steps_and_leases)]
    assert len(asked) == extra
