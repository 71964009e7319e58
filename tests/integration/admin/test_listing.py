"""The list of keys: its filters, its search, and by which queries."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from django_idempotency.admin import limits
from django_idempotency.models import IdempotencyKey
from tests.admin_pages import LIST, make_key, staff, step

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
    ours = [q["sql"] for q in captured.captured_queries if "idempotency_idempotencykey" in q["sql"]]
    asked = [sql for sql in ours if "ORDER BY" in sql]
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


def test_the_list_never_counts_the_table(admin_client: Client, django_assert_max_num_queries: Any) -> None:
    """Every count is over a bounded subquery, every filter over a range of the primary key."""
    make_key()
    for query in (
        {},
        {"state": "completed"},
        {"response": "2"},
        {"date": "7d"},
        {"operation": "POST orders/"},
        {"q": "k-1"},
    ):
        with django_assert_max_num_queries(25) as captured:
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


VIEW = "view_idempotencykey"


def listed(client: Client, **query: str) -> list[str]:
    answer = client.get(reverse(LIST), query)
    return [result.key for result in answer.context["cl"].result_list]


class TestFilters:
    def test_a_state_shows_its_keys(self) -> None:
        """Those that need attention the oldest first, all others the newest."""
        hour = timedelta(hours=1)
        now = timezone.now()
        make_key("done")
        make_key("running", status="in_progress", locked_until=now + hour)
        make_key("stuck", status="in_progress", locked_until=now - hour)
        make_key("doubt", status="failed")
        make_key("half", status="failed")
        make_key("failed", status="failed")
        for name in ("done", "running", "doubt"):
            step(IdempotencyKey.objects.get(key=name))
        step(IdempotencyKey.objects.get(key="half"), finished=True)
        client = staff(VIEW)
        assert listed(client, state="attention") == ["stuck", "doubt", "half"]
        assert listed(client, state="stuck") == ["stuck"]
        assert listed(client, state="in_doubt") == ["doubt"]
        assert listed(client, state="half_done") == ["half"]
        assert listed(client, state="in_flight") == ["running"]
        assert listed(client, state="failed") == ["failed", "half", "doubt"]
        assert listed(client, state="completed") == ["done"]
        assert listed(client, state="nonsense") == []
        assert len(listed(client)) == 6

    def test_other_filters_choose_among_all_keys_of_a_state(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Not among the first 2,000 that were found, nor among the latest 100,000."""
        monkeypatch.setattr(limits, "LISTED", 2)
        monkeypatch.setattr(limits, "FILTERED", 5)
        for number in range(5):
            step(
                make_key(f"k-{number}", status="failed", operation="POST pay/" if number in (0, 4) else "POST orders/")
            )
        for number in range(10):
            make_key(f"done-{number}", operation="POST pay/")
        client = staff(VIEW)
        assert listed(client, state="in_doubt", operation="POST pay/") == ["k-0", "k-4"]
        assert listed(client, state="in_doubt", q="k-3") == ["k-3"]
        assert listed(client, state="in_doubt") == ["k-0", "k-1"]
        assert listed(client, state="failed") == ["k-4", "k-3"]

    def test_by_operation_as_a_person_reads_it(self) -> None:
        """The choices are those of the latest keys, and the one that was asked for."""
        make_key("k-1", operation="POST ^orders/(?P<pk>[0-9]+)/$")
        make_key("k-2", operation="stripe")
        client = staff(VIEW)
        page = client.get(reverse(LIST))
        spec = next(spec for spec in page.context["cl"].filter_specs if spec.parameter_name == "operation")
        assert spec.lookup_choices == [("POST ^orders/(?P<pk>[0-9]+)/$", "POST orders/<pk>/"), ("stripe", "stripe")]
        assert '<td class="field-route">POST orders/&lt;pk&gt;/</td>' in page.content.decode()
        assert listed(client, operation="POST ^orders/(?P<pk>[0-9]+)/$") == ["k-1"]
        assert listed(client, operation="POST long ago/") == []

    def test_by_date(self) -> None:
        """Of the claim."""
        now = timezone.now()
        for days in (10, 3, 0):
            make_key(f"k-{days}", created_at=now - timedelta(days=days, hours=2))
        client = staff(VIEW)
        assert listed(client, date="1h") == []
        assert listed(client, date="24h") == ["k-0"]
        assert listed(client, date="7d") == ["k-0", "k-3"]
        assert listed(client, date="x") == ["k-0", "k-3", "k-10"]

    def test_by_response(self) -> None:
        """The first digit."""
        make_key("k-1")
        make_key("k-2", status_code=422)
        client = staff(VIEW)
        assert listed(client, response="4") == ["k-2"]
        assert listed(client, response="x") == ["k-2", "k-1"]

    def test_filters_look_at_the_latest_keys(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """For a rare value, they would else read the whole table."""
        monkeypatch.setattr(limits, "FILTERED", 2)
        for number in range(4):
            make_key(f"k-{number}")
        assert listed(staff(VIEW), response="2") == ["k-3", "k-2"]


def test_a_long_key_is_shortened(admin_client: Client) -> None:
    """The whole key is its title."""
    make_key("8e03978e-40d5-43e8-bc93-6894a57f9324")
    page = admin_client.get(reverse(LIST)).content.decode()
    assert '<span title="8e03978e-40d5-43e8-bc93-6894a57f9324">8e03978e-40d…</span>' in page
