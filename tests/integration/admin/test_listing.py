"""The list of keys: its badges, filters and search, the numbers above it, and by which queries."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone

from django_idempotency import run_once
from django_idempotency.admin import overview as limits
from django_idempotency.admin.overview import Number, attention, overview
from django_idempotency.models import IdempotencyKey, IdempotencyStep
from tests.admin_pages import HOUR, LIST, make_key, staff, step
from tests.sql import ask

pytestmark = pytest.mark.django_db
VIEW = "view_idempotencykey"


def listed(client: Client, **query: str) -> list[str]:
    answer = client.get(reverse(LIST), query)
    return [result.key for result in answer.context["cl"].result_list]


def numbers(found: list[Number]) -> dict[str, str]:
    return {number.state: str(number) for number in found}


@pytest.fixture
def one_of_each() -> None:
    now = timezone.now()
    make_key("done")
    step(make_key("live", status="in_progress", locked_until=now + HOUR, created_at=now - 3 * HOUR))
    make_key("live too", status="in_progress", locked_until=now + HOUR, created_at=now - HOUR)
    make_key("stuck", status="in_progress", locked_until=now - HOUR, created_at=now - 5 * HOUR)
    step(make_key("doubt", status="failed"))
    step(make_key("half", status="failed"), finished=True)
    step(make_key("stuck doubt", status="in_progress", locked_until=now - HOUR))
    step(make_key("stuck half", status="in_progress", locked_until=now - HOUR), finished=True)
    step(make_key("failed", status="failed"), finished=True)
    IdempotencyStep.objects.filter(key__key="failed").update(kind="write")  # with nothing outside
    make_key("unleased", status="in_progress")


@pytest.mark.usefixtures("one_of_each")
class TestStates:
    def test_each_key_has_one_badge_for_the_worst(self, admin_client: Client) -> None:
        """In doubt is worse than half done, and half done than stuck: money may have moved."""
        page = admin_client.get(reverse(LIST), {"p": "1"}).content.decode()
        rows = page[page.index("<tbody>") : page.index("</tbody>")].split("<tr>")[1:]
        found = {}
        for row in rows:
            (badge,) = re.findall(r'<span aria-hidden="true">.</span> (.*?)</span>', row)
            found[re.findall(r"change/[^>]*>([^<]*)</a>", row)[0]] = badge
        assert found == {
            "done": "completed",
            "live": "in flight",
            "live too": "in flight",
            "failed": "failed",
            "stuck": "stuck",
            "unleased": "in doubt",
            "half": "half done",
            "stuck half": "half done",
            "doubt": "in doubt",
            "stuck doubt": "in doubt",
        }

    def test_a_state_lists_its_keys(self) -> None:
        """Those that need attention the oldest first, all others the newest. A key is listed under its worst state."""
        client = staff(VIEW)
        attention = ["stuck", "doubt", "half", "stuck doubt", "stuck half", "unleased"]
        for state, keys in {
            "attention": attention,
            "stuck": ["stuck"],
            "in_doubt": ["doubt", "stuck doubt", "unleased"],
            "half_done": ["half", "stuck half"],
            "in_flight": ["live too", "live"],
            "failed": ["failed"],
            "completed": ["done"],
            "nonsense": [],
            "\0": [],
        }.items():
            assert listed(client, state=state) == keys, state
        assert len(listed(client)) == 10

    def test_the_numbers_count_what_their_links_list(self, admin_client: Client) -> None:
        """And they add up: a key counts under its worst state."""
        page = admin_client.get(reverse(LIST))
        found = page.context["cl"].overview
        assert numbers(found) == {"in_flight": "2", "in_doubt": "3", "half_done": "2", "stuck": "1", "failed": "1"}
        assert str(attention(found)) == str(len(listed(admin_client, state="attention"))) == "6"
        for number in found:
            assert f'<a href="?state={number.state}"><strong>{number}</strong>' in page.content.decode()
            assert len(listed(admin_client, state=number.state)) == number.count

    def test_a_number_ends_at_its_limit_and_says_so(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """`2+` means two or more."""
        monkeypatch.setattr(limits, "LISTED", 2)
        monkeypatch.setattr(limits, "FILTERED", 2)
        found = overview(IdempotencyKey.objects.all())
        assert numbers(found)["in_doubt"] == numbers(found)["in_flight"] == "2+"
        assert str(attention(found)).endswith("+")
        assert str(Number("failed", 2000, limited=True)) == "2,000+"

    def test_what_needs_attention_comes_first_with_what_to_do(self, admin_client: Client, settings: Any) -> None:
        """Before everything else on the page: a line for each operation and state, with its number and the oldest."""
        settings.IDEMPOTENCY = {"RUNBOOK_URL": "/runbook/"}
        IdempotencyKey.objects.filter(key="doubt").update(operation="POST a&b/")
        page = admin_client.get(reverse(LIST))
        in_doubt = page.context["cl"].overview[1]
        oldest = IdempotencyKey.objects.get(key="stuck doubt").pk
        assert [(line["operation"], line["count"], line["oldest"]) for line in in_doubt.operations][1:] == [
            ("POST orders/", 2, oldest)
        ]
        text = page.content.decode()
        assert "Needs attention: 6" in text
        assert text.index("Needs attention") < text.index("Look in the books") < text.index('id="result_list"')
        assert text.count("Look in the books") == 1
        assert '<a href="?state=in_doubt&amp;operation=POST%20a%26b%2F">1 × POST a&amp;b/</a>' in text
        assert '<a href="?state=attention">All of them, the oldest first</a>' in text
        assert '<a href="/runbook/" rel="noopener noreferrer">Runbook</a>' in text

    @pytest.mark.parametrize("query", [{"q": "done"}, {"state": "completed"}, {"p": "1"}, {"state": "stuck"}])
    def test_only_the_plain_list_has_them(self, admin_client: Client, query: dict[str, str]) -> None:
        """Whoever searches or filters waits for what he asked for. No inline style or script: a policy forbids both."""
        page = admin_client.get(reverse(LIST)).content.decode()
        ours = page[page.index('<section class="idempotency-overview') : page.index("</section>")]
        assert not re.findall(r"<(?:style|script)|\s(?:style|on\w+)=", ours)
        assert b"idempotency-overview" not in admin_client.get(reverse(LIST), query).content


@pytest.mark.only_on("postgresql")
@pytest.mark.django_db(transaction=True)
def test_open_transactions_that_hold_keys_are_shown() -> None:
    """In the default mode, for those who may decide. Which keys, nobody can read before the COMMIT."""

    def work() -> list[str]:
        clients = staff(VIEW, "resolve_idempotencykey"), staff(VIEW)
        return [client.get(reverse(LIST)).content.decode() for client in clients]

    operator, other = run_once(work, scope="s", key="k", operation="o").value
    (pid,) = ask("SELECT pg_backend_pid()")
    assert f"Database process {pid}, application “" in operator
    assert re.search(r"active, open for \d+ s, keys: 1<", operator)
    assert "At work without a lease" not in other


def test_a_search_says_what_it_has_searched(admin_client: Client) -> None:
    """And a filter, at how many keys it has looked."""
    assert "Searched among all keys" in admin_client.get(reverse(LIST), {"q": "x"}).content.decode()
    assert "the latest 100,000 keys only" in admin_client.get(reverse(LIST), {"operation": "o"}).content.decode()


def test_an_empty_table_is_no_error(admin_client: Client) -> None:
    """Zeros."""
    page = admin_client.get(reverse(LIST))
    assert {*numbers(page.context["cl"].overview).values()} == {"0"}
    assert "Nothing needs attention" in page.content.decode()


@pytest.mark.parametrize(("status", "extra"), [("completed", 0), ("failed", 2)])
def test_badges_cost_two_queries_for_a_whole_page(admin_client: Client, status: str, extra: int) -> None:
    """The clock and the steps. None, if all keys are completed."""
    for number in range(5):
        make_key(f"k-{number}", status=status)
    with CaptureQueriesContext(connection) as queries:
        admin_client.get(reverse(LIST), {"p": "1"})
    clocks = ("SELECT statement_timestamp", "SELECT UTC_TIMESTAMP", "SELECT strftime", "idempotencystep")
    assert sum(any(part in query["sql"] for part in clocks) for query in queries) == extra


class TestFilters:
    @pytest.mark.parametrize("lookup", ["body__startswith", "headers__contains", "status__in", "scope"])
    def test_the_address_cannot_ask_what_the_filters_do_not(self, lookup: str) -> None:
        """Whoever may not see bodies could else guess one, letter by letter."""
        assert staff(VIEW).get(reverse(LIST), {lookup: "x"}).status_code == 400

    @pytest.mark.parametrize("query", [{"o": "1"}, {"o": "-4.2"}, {"_facets": "True"}])
    def test_the_address_cannot_ask_for_a_query_over_the_whole_table(
        self, admin_client: Client, query: dict[str, str]
    ) -> None:
        """Neither another order nor facets."""
        make_key()
        with CaptureQueriesContext(connection) as queries:
            admin_client.get(reverse(LIST), query)
        asked = [q["sql"] for q in queries if "idempotency_idempotencykey" in q["sql"] and "ORDER BY" in q["sql"]]
        assert asked
        for sql in asked:
            assert "FILTER" not in sql
            assert re.search(r"ORDER BY (1|\S+id[\"`]) (DESC|ASC)", sql), sql

    def test_others_choose_among_all_keys_of_a_state(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Not among the first 2,000 that were found, nor among the latest 100,000."""
        monkeypatch.setattr(limits, "LISTED", 2)
        monkeypatch.setattr(limits, "FILTERED", 5)
        for number in range(5):
            operation = "POST pay/" if number in (0, 4) else "POST orders/"
            step(make_key(f"k-{number}", status="failed", operation=operation))
        for number in range(10):
            make_key(f"done-{number}", operation="POST pay/")
        client = staff(VIEW)
        assert listed(client, state="in_doubt", operation="POST pay/") == ["k-0", "k-4"]
        assert listed(client, state="in_doubt", q="k-3") == ["k-3"]
        assert listed(client, state="in_doubt") == ["k-0", "k-1"]
        assert listed(client, operation="POST pay/") == ["done-9", "done-8", "done-7", "done-6", "done-5"]

    def test_by_operation_as_a_person_reads_it(self) -> None:
        """The choices are those of the latest keys, and the one that was asked for. NUL finds nothing."""
        make_key("k-1", operation="POST ^orders/(?P<pk>[0-9]+)/$")
        make_key("k-2", operation="stripe")
        client = staff(VIEW)
        page = client.get(reverse(LIST))
        spec = next(spec for spec in page.context["cl"].filter_specs if spec.parameter_name == "operation")
        assert spec.lookup_choices == [("POST ^orders/(?P<pk>[0-9]+)/$", "POST orders/<pk>/"), ("stripe", "stripe")]
        assert '<td class="field-route">POST orders/&lt;pk&gt;/</td>' in page.content.decode()
        assert listed(client, operation="POST ^orders/(?P<pk>[0-9]+)/$") == ["k-1"]
        assert listed(client, operation="POST long ago/") == listed(client, operation="\0") == []
