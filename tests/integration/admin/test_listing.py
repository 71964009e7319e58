"""The list of keys: its filters, its search, and by which queries."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from django_idempotency.models import IdempotencyKey, IdempotencyStep
from tests.admin_pages import LIST, make_key, staff
from tests.integration.leased_urls import GATEWAY, HOOKS
from tests.leases import Broken, breaks, row

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize("lookup", ["body__startswith", "headers__contains", "key__contains", "status__in", "scope"])
def test_the_address_cannot_ask_what_the_filters_do_not(lookup: str) -> None:
    """Whoever may not see bodies could else guess one, letter by letter."""
    make_key()
    assert staff("view_idempotencykey").get(reverse(LIST), {lookup: "x"}).status_code == 400


@pytest.mark.parametrize("query", [{"o": "1"}, {"o": "-4.2"}, {"_facets": "True"}])
def test_the_address_cannot_ask_for_a_query_over_the_whole_table(
    admin_client: Client, django_assert_max_num_queries: Any, query: dict[str, str]
) -> None:
    """Neither another order nor facets."""
    make_key()
    with django_assert_max_num_queries(12) as captured:
        admin_client.get(reverse(LIST), query)
    asked = [q["sql"] for q in captured.captured_queries if "idempotency_idempotencykey" in q["sql"]]
    assert len(asked) == 2
    for sql in asked:
        assert "FILTER" not in sql
        order = sql.partition("ORDER BY")[2]
        assert order.startswith(
            (" 1 DESC", ' "django_idempotency_idempotencykey"."id" DESC', " `django_idempotency_")
        ), sql
        assert "status" not in order


@pytest.mark.parametrize("term", ["k-7", '"k-7"', " k-7 "])
def test_a_key_is_found_as_the_client_sent_it(admin_client: Client, term: str) -> None:
    """With or without quotes, and exactly."""
    make_key("k-7")
    make_key("k-77")
    result = admin_client.get(reverse(LIST), {"q": term}).context["cl"].result_list
    assert [row.key for row in result] == ["k-7"]


def test_a_key_is_found_by_its_reference_in_the_log(admin_client: Client) -> None:
    """Or by its value, should a key look like a reference."""
    make_key("evt_1")
    make_key("7d4e5a76eae6d8c1")
    found = admin_client.get(reverse(LIST), {"q": "7d4e5a76eae6d8c1"}).context["cl"].result_list
    assert {row.key for row in found} == {"evt_1", "7d4e5a76eae6d8c1"}


def test_something_that_is_no_key_finds_nothing(admin_client: Client) -> None:
    """An impossible key is no error."""
    make_key()
    assert not admin_client.get(reverse(LIST), {"q": "a,b"}).context["cl"].result_list


@pytest.mark.only_on("postgresql")
def test_the_search_uses_the_unique_index(admin_client: Client, django_assert_max_num_queries: Any) -> None:
    """EXPLAIN of the list's own query on a filled table."""
    now = timezone.now()
    IdempotencyKey.objects.bulk_create(
        IdempotencyKey(
            key_hash=n,
            scope_hash=n,
            scope="s",
            operation="o",
            key=f"k{n}",
            created_at=now,
            expires_at=now,
        )
        for n in range(5000)
    )
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE django_idempotency_idempotencykey")
    queryset = admin_client.get(reverse(LIST), {"q": "k7"}).context["cl"].queryset
    assert "idempotency_key_uniq" in queryset.explain()


def test_the_list_never_counts_the_table(admin_client: Client, django_assert_max_num_queries: Any) -> None:
    """Every count is over a bounded subquery, every filter over a range of the primary key."""
    make_key()
    for query in ({}, {"status": "completed"}, {"response": "2"}, {"q": "k-1"}):
        with django_assert_max_num_queries(15) as captured:
            response = admin_client.get(reverse(LIST), query)
        assert [row.key for row in response.context["cl"].result_list] == ["k-1"]
        asked = [q["sql"] for q in captured.captured_queries if "idempotency_idempotencykey" in q["sql"]]
        assert asked
        for sql in asked:
            assert "COUNT" not in sql or "LIMIT 2000" in sql or re.search(r'["`]id["`] >', sql), sql
            assert "body" not in sql


def test_pages_end_at_the_limit(admin_client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """The list pages through the newest keys and says no larger number."""
    monkeypatch.setattr("django_idempotency.admin.limits.LISTED", 3)
    monkeypatch.setattr("django_idempotency.admin.IdempotencyKeyAdmin.list_per_page", 2)
    for number in range(5):
        make_key(f"k-{number}")
    changelist = admin_client.get(reverse(LIST)).context["cl"]
    assert changelist.result_count == 3
    assert [row.key for row in changelist.result_list] == ["k-4", "k-3"]
    assert changelist.paginator.num_pages == 2


Post = Callable[..., Any]
VIEW, RESOLVE = "view_idempotencykey", "resolve_idempotencykey"


@pytest.fixture(autouse=True)
def _clean() -> None:
    GATEWAY.reset()
    HOOKS.clear()


@pytest.fixture
def in_doubt(post: Post) -> IdempotencyKey:
    GATEWAY.after = breaks
    with pytest.raises(Broken):
        post("/pay/hold")
    GATEWAY.after = lambda: None
    return row()


def listed(client: Client, attention: str) -> set[str]:
    answer = client.get(reverse(LIST), {"attention": attention})
    return {result.key for result in answer.context["cl"].result_list}


class TestList:
    def test_filters_show_what_needs_attention(self) -> None:
        """A lease that is over, and a call without a result that nobody works on."""
        hour = timedelta(hours=1)
        now = timezone.now()
        make_key("done")
        make_key("running", status="in_progress", locked_until=now + hour)
        make_key("stuck", status="in_progress", locked_until=now - hour)
        make_key("doubt", status="failed")
        make_key("failed", status="failed")
        for name in ("done", "running", "doubt"):
            key = IdempotencyKey.objects.get(key=name)
            IdempotencyStep.objects.create(key=key, name="charge", kind="call", attempt=1, started_at=now)
        client = staff(VIEW)
        assert listed(client, "stuck") == {"stuck"}
        assert listed(client, "in_doubt") == {"doubt"}
        assert len(listed(client, "")) == 5
