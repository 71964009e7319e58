"""The search: by key, reference, resource or caller."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from django_idempotency.admin import limits
from tests.admin_pages import LIST, make_key, step
from tests.factories import UserFactory
from tests.plans import analyze, make_many, planned

pytestmark = pytest.mark.django_db


def found(client: Client, text: str) -> list[str]:
    return [row.key for row in client.get(reverse(LIST), {"q": text}).context["cl"].result_list]


@pytest.mark.parametrize(
    ("text", "keys"),
    [
        ("59", ["c", "b", "a"]),
        ("order 59", ["b", "a"]),
        ("Order 59", ["b", "a"]),
        ("shop.Order 59", ["b"]),
        ("invoice 59", ["c"]),
        ("order 5", []),
        ("rder 59", []),
        ("A 7", ["d"]),
        (" ", ["d", "c", "b", "a"]),
    ],
)
def test_by_resource(admin_client: Client, text: str, keys: list[str]) -> None:
    """By its ID, or by its name and ID. An ID may hold a space."""
    make_key("a", resource_type="order", resource_id="59")
    make_key("b", resource_type="shop.Order", resource_id="59")
    make_key("c", resource_type="invoice", resource_id="59")
    make_key("d", resource_type="slot", resource_id="A 7")
    assert found(admin_client, text) == keys


def test_by_caller(admin_client: Client) -> None:
    """By the user's name, or by the scope as the page shows it."""
    ada: Any = UserFactory(username="ada")
    make_key("hers", scope=f"user:auth.User:{ada.pk}")
    make_key("unknown", scope="anonymous")
    assert found(admin_client, "ada") == ["hers"]
    assert found(admin_client, f"user:auth.User:{ada.pk}") == ["hers"]
    assert found(admin_client, "anonymous") == ["unknown"]
    assert found(admin_client, "bob") == []


def test_a_callers_keys_are_looked_for_among_the_latest(admin_client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """And among all that need attention: no index has callers."""
    monkeypatch.setattr(limits, "FILTERED", 2)
    step(make_key("in doubt", scope="s:1", status="failed"))
    for number in range(4):
        make_key(f"k-{number}", scope="s:1")
    assert found(admin_client, "s:1") == ["k-3", "k-2", "in doubt"]


@pytest.mark.only_on("postgresql")
def test_no_search_reads_the_whole_table(admin_client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """By indexes only, as the database itself says."""
    monkeypatch.setattr(limits, "FILTERED", 200)
    make_many(20_000)
    make_key("needle", resource_type="order", resource_id="59")
    UserFactory(username="ada")
    analyze()
    for text in ("needle", "59", "order 59", "ada"):
        with CaptureQueriesContext(connection) as queries:
            found(admin_client, text)
        ours = [query["sql"] for query in queries if "django_idempotency_idempotency" in query["sql"]]
        assert ours
        for sql in ours:
            scans, rows = planned(sql)
            assert "Seq Scan" not in scans, sql
            assert rows <= 2000, (rows, sql)
