"""The state of a key at a glance."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone

from tests.admin_pages import HOUR, LIST, fill, make_key, step

pytestmark = pytest.mark.django_db


def test_badges_say_it_in_words(admin_client: Client) -> None:
    """And with a shape for the eye alone."""
    now = timezone.now()
    step(make_key("k", status="in_progress", locked_until=now - HOUR))
    page = admin_client.get(reverse(LIST), {"q": "k"}).content.decode()
    row = page[page.index("<tbody>") : page.index("</tbody>")]
    text = " ".join(re.sub("<.*?>", "", row).split())
    assert "▶ in progress ▲ stuck ? in doubt" in text
    assert row.count('<span aria-hidden="true">') == 3


@pytest.mark.parametrize(("status", "extra"), [("completed", 0), ("failed", 2)])
def test_badges_cost_two_queries_for_a_whole_page(
    admin_client: Client, status: str, extra: int, django_assert_num_queries: Any
) -> None:
    """None, if all keys are completed."""
    fill([timezone.now()] * 5, status=status)
    with CaptureQueriesContext(connection) as queries:
        admin_client.get(reverse(LIST), {"p": "1"})
    assert len([q for q in queries if "django_idempotency_" in q["sql"]]) == 2 + extra
