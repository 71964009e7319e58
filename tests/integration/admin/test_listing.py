"""The list of keys: its badges, filters and search, the numbers above it, and by which queries."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.contrib.admin import site
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client, override_settings
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone

from django_idempotency.admin import IdempotencyKeyAdmin
from django_idempotency.admin import overview as limits
from django_idempotency.admin.overview import BY_INDEX, Number, find, overview
from django_idempotency.maintenance import in_doubt as keys_in_doubt
from django_idempotency.models import IdempotencyKey, IdempotencyStep
from tests.admin_pages import HOUR, LIST, address, decide, detail, fill, make_key, staff, step
from tests.expired import make_leased
from tests.factories import UserFactory
from tests.plans import analyze, make_many, planned
from tests.shopapp.models import Order

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
        """Those that need attention the oldest first, all others the newest. A key can be in several states."""
        client = staff(VIEW)
        attention = ["stuck", "doubt", "half", "stuck doubt", "stuck half", "unleased"]
        for state, keys in {
            "attention": attention,
            "stuck": ["stuck", "stuck doubt", "stuck half", "unleased"],
            "in_doubt": ["doubt", "stuck doubt", "unleased"],
            "half_done": ["half", "stuck half"],
            "in_flight": ["live too", "live"],
            "failed": ["failed", "half", "doubt"],
            "completed": ["done"],
            "nonsense": [],
            "\0": [],
        }.items():
            assert listed(client, state=state) == keys, state
        assert len(listed(client)) == 10

    def test_the_numbers_count_what_their_links_list(self, admin_client: Client) -> None:
        """A key can be in several states."""
        page = admin_client.get(reverse(LIST))
        found = page.context["cl"].overview.numbers
        assert numbers(found) == {
            "in_doubt": "3",
            "half_done": "2",
            "stuck": "4",
            "failed": "3",
            "in_flight": "2",
        }
        for number in found:
            assert f'<a href="?state={number.state}"><strong>{number}</strong>' in page.content.decode()
            assert len(listed(admin_client, state=number.state)) == number.count

    def test_a_number_ends_at_its_limit_and_says_so(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """`2+` means two or more."""
        monkeypatch.setattr(limits, "LISTED", 2)
        monkeypatch.setattr(limits, "FILTERED", 2)
        found = overview(IdempotencyKey.objects.all())
        assert numbers(found.numbers)["stuck"] == numbers(found.numbers)["in_flight"] == "2+"
        assert str(Number("failed", 2000, limited=True)) == "2,000+"

    def test_they_count_what_this_person_may_see(self) -> None:
        """A project whose admin shows the keys of one tenant counts those."""
        found = overview(IdempotencyKey.objects.filter(key__startswith="live"))
        assert {name: number for name, number in numbers(found.numbers).items() if number != "0"} == {"in_flight": "2"}
        assert found.oldest == []

    def test_the_oldest_that_need_attention_come_first_with_what_to_do(
        self, admin_client: Client, monkeypatch: pytest.MonkeyPatch, settings: Any
    ) -> None:
        """Before everything else on the page. The rest is behind a link, beside the one to the runbook."""
        settings.IDEMPOTENCY = {"RUNBOOK_URL": "/runbook/"}
        page = admin_client.get(reverse(LIST))
        oldest = page.context["cl"].overview.oldest
        assert [row.key for row in oldest] == ["stuck", "doubt", "half", "stuck doubt", "stuck half"]
        text = page.content.decode()
        assert text.index("Needs attention") < text.index(oldest[1].shown.to_do) < text.index('id="result_list"')
        assert f"POST orders/ {oldest[0].reference}" in text
        assert '<a href="?state=attention">All of them, the oldest first</a>' in text
        assert '<a href="/runbook/" rel="noopener noreferrer">Runbook</a>' in text
        monkeypatch.setattr(limits, "FIRST", 1)
        assert len(admin_client.get(reverse(LIST)).context["cl"].overview.oldest) == 1

    @pytest.mark.parametrize("query", [{"q": "done"}, {"state": "completed"}, {"p": "1"}, {"state": "stuck"}])
    def test_only_the_plain_list_has_them(self, admin_client: Client, query: dict[str, str]) -> None:
        """Whoever searches or filters waits for what he asked for. No inline style or script: a policy forbids both."""
        page = admin_client.get(reverse(LIST)).content.decode()
        ours = page[page.index('<section class="idempotency-overview') : page.index("</section>")]
        assert not re.findall(r"<(?:style|script)|\s(?:style|on\w+)=", ours)
        assert b"idempotency-overview" not in admin_client.get(reverse(LIST), query).content


def test_an_empty_table_is_no_error(admin_client: Client) -> None:
    """Zeros."""
    page = admin_client.get(reverse(LIST))
    assert {*numbers(page.context["cl"].overview.numbers).values()} == {"0"}
    assert "Nothing needs attention" in page.content.decode()


@pytest.mark.parametrize(("status", "extra"), [("completed", 0), ("failed", 2)])
def test_badges_cost_two_queries_for_a_whole_page(admin_client: Client, status: str, extra: int) -> None:
    """The clock and the steps. None, if all keys are completed."""
    fill([timezone.now()] * 5, status=status)
    with CaptureQueriesContext(connection) as queries:
        admin_client.get(reverse(LIST), {"p": "1"})
    clocks = ("SELECT statement_timestamp", "SELECT UTC_TIMESTAMP", "SELECT strftime", "idempotencystep")
    assert sum(any(part in query["sql"] for part in clocks) for query in queries) == extra


def test_without_the_permission_nothing_is_asked() -> None:
    """Not even a count."""
    client = staff("view_response")
    with CaptureQueriesContext(connection) as queries:
        assert client.get(reverse(LIST)).status_code == 403
    assert not [q for q in queries if "django_idempotency_idempotencykey" in q["sql"]]


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
        assert listed(client, state="failed") == ["k-4", "k-3"]
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


class TestSearch:
    @pytest.mark.parametrize("term", ["k-7", '"k-7"', " k-7 "])
    def test_a_key_is_found_as_the_client_sent_it(self, admin_client: Client, term: str) -> None:
        """With or without quotes, and exactly. An impossible key is no error."""
        make_key("k-7")
        make_key("k-77")
        assert listed(admin_client, q=term) == ["k-7"]
        assert listed(admin_client, q="a,b") == []

    def test_a_key_is_found_by_its_reference_in_the_log(self, admin_client: Client) -> None:
        """Or by its value, should a key look like a reference."""
        make_key("evt_1")
        make_key("7d4e5a76eae6d8c1")
        assert {*listed(admin_client, q="7d4e5a76eae6d8c1")} == {"evt_1", "7d4e5a76eae6d8c1"}

    def test_by_resource(self, admin_client: Client) -> None:
        """By its ID, or by its name and ID. An ID may hold a space."""
        make_key("a", resource_type="order", resource_id="59")
        make_key("b", resource_type="shop.Order", resource_id="59")
        make_key("c", resource_type="invoice", resource_id="59")
        make_key("d", resource_type="slot", resource_id="A 7")
        for text, keys in {
            "59": "cba",
            "order 59": "ba",
            "Order 59": "ba",
            "shop.Order 59": "b",
            "invoice 59": "c",
            "order 5": "",
            "rder 59": "",
            "A 7": "d",
            "slot A 7": "d",
            " ": "dcba",
        }.items():
            assert listed(admin_client, q=text) == list(keys), text

    def test_by_caller(self, admin_client: Client) -> None:
        """By the scope as the page shows it; by the user's name, for those who may see users."""
        ada: User = UserFactory(username="ada")
        make_key("hers", scope=f"user:auth.User:{ada.pk}")
        make_key("unknown", scope="anonymous")
        assert listed(admin_client, q="ada") == listed(staff(VIEW, "view_user"), q="ada") == ["hers"]
        assert listed(staff(VIEW), q="ada") == []
        assert listed(staff(VIEW), q=f"user:auth.User:{ada.pk}") == ["hers"]
        assert listed(admin_client, q="anonymous") == ["unknown"]
        assert listed(admin_client, q="bob") == []

    def test_the_newest_keys_of_a_caller_are_among_those_that_are_listed(
        self, admin_client: Client, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """However many there are: the index on the caller does not know which are the newest."""
        monkeypatch.setattr(limits, "LISTED", 2)
        for number in range(6):
            make_key(f"k-{number}", scope="s:1")
        assert listed(admin_client, q="s:1")[:2] == ["k-5", "k-4"]


class TestAlias:
    """The database of the pages: the alias that keys are written to, and never a replica."""

    READS_THE_REPLICA = {"DATABASE_ROUTERS": ["tests.routers.OtherIsRead"]}

    @pytest.mark.urls("tests.integration.admin_urls")
    @pytest.mark.parametrize("query", ["", "?state=in_doubt", "?q=k", "?operation=POST+pay/hold"])
    def test_no_page_reads_a_replica(self, operator: Client, in_doubt: IdempotencyKey, query: str) -> None:
        """A query to the replica is an error here: the test may ask `default` only."""
        history = reverse("admin:django_idempotency_idempotencykey_history", args=[in_doubt.pk])
        with override_settings(**self.READS_THE_REPLICA):
            for page in (reverse(LIST) + query, detail(in_doubt), history):
                assert operator.get(page).status_code == 200

    @pytest.mark.urls("tests.integration.admin_urls")
    @pytest.mark.parametrize("decision", ["record", "answer", "release"])
    def test_a_decision_is_written_where_keys_are_written(
        self, admin_client: Client, in_doubt: IdempotencyKey, decision: str
    ) -> None:
        """On a replica that can be written, the decision would be lost. A recorded row is read there, too."""
        order = Order.objects.create(reference="by hand")
        with override_settings(**self.READS_THE_REPLICA):
            assert admin_client.get(address(in_doubt, decision)).status_code == 200
            data = {"result": f'{{"model": "shopapp.Order", "pk": {order.pk}}}'} if decision == "record" else {}
            decide(admin_client, in_doubt, decision, **data)
        assert not keys_in_doubt().exists()
        if decision == "record":
            expected = f'{{"model": "shopapp.Order", "pk": {order.pk}, "using": "default"}}'
            assert in_doubt.steps.get().result == expected

    @pytest.mark.django_db(databases=["default", "other"])
    @pytest.mark.parametrize("how", ["setting", "subclass"])
    def test_the_projects_alias(self, operator: Client, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
        """By the setting `USING`, or by a subclass: the pages and the decisions are about the keys there."""

        class OfOther(IdempotencyKeyAdmin):
            def get_queryset(self, request: Any) -> Any:
                return super().get_queryset(request).using("other")

        make_leased("k-other", "failed", doubt=True, using="other")
        row = keys_in_doubt(using="other").get()
        if how == "subclass":
            monkeypatch.setattr(site._registry[IdempotencyKey], "__class__", OfOther)
        with override_settings(IDEMPOTENCY={"USING": "other"} if how == "setting" else {}):
            assert "k-other" in operator.get(detail(row)).content.decode()
            assert "Released for retry." in decide(operator, row, "release")
        assert not keys_in_doubt(using="other").exists()

    @pytest.mark.django_db(databases=["default", "other"])
    def test_the_numbers_are_of_the_queryset_s_alias(self, django_assert_num_queries: Any) -> None:
        """Nothing is asked elsewhere."""
        fill([timezone.now()], using="other", status="in_progress", locked_until=timezone.now() + HOUR)
        with django_assert_num_queries(0):
            found = overview(IdempotencyKey.objects.using("other"))
        assert {name: number for name, number in numbers(found.numbers).items() if number != "0"} == {"in_flight": "1"}


class TestCost:
    def test_the_list_never_counts_the_table(self, admin_client: Client, django_assert_max_num_queries: Any) -> None:
        """Every count is over a bounded subquery, every filter over a range of the primary key."""
        make_key()
        for query in ({}, {"state": "completed"}, {"operation": "POST orders/"}, {"q": "k-1"}):
            with django_assert_max_num_queries(25) as captured:
                response = admin_client.get(reverse(LIST), query)
            assert [row.key for row in response.context["cl"].result_list] == ["k-1"]
            asked = [q["sql"] for q in captured.captured_queries if "idempotency_idempotencykey" in q["sql"]]
            assert asked
            for sql in asked:
                assert "COUNT" not in sql or "LIMIT 2000" in sql or re.search(r'["`]id["`] >', sql), sql
                assert "body" not in sql

    def test_pages_end_at_the_limit(self, admin_client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
        """The list pages through the newest keys and says no larger number."""
        monkeypatch.setattr(limits, "LISTED", 3)
        monkeypatch.setattr("django_idempotency.admin.IdempotencyKeyAdmin.list_per_page", 2)
        for number in range(5):
            make_key(f"k-{number}")
        changelist = admin_client.get(reverse(LIST)).context["cl"]
        assert changelist.result_count == 3
        assert [row.key for row in changelist.result_list] == ["k-4", "k-3"]
        assert changelist.paginator.num_pages == 2

    @pytest.fixture
    def _in_proportion(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """20,000 keys, and limits as they are to a table of millions."""
        monkeypatch.setattr("django_idempotency.admin.IdempotencyKeyAdmin.list_per_page", 20)
        for name, limit in {"LISTED": 50, "FILTERED": 200}.items():
            monkeypatch.setattr(limits, name, limit)
        last = make_many(20_000)
        now = timezone.now()
        keys, steps = IdempotencyKey.objects.filter, IdempotencyStep.objects.filter
        keys(pk__gt=last - 90).update(status="failed", last_error="It broke.")
        keys(pk__range=(last - 189, last - 100)).update(status="in_progress", locked_until=now - HOUR)
        keys(pk__range=(last - 289, last - 200)).update(status="in_progress", locked_until=now + HOUR)
        steps(key__gt=last - 90).update(finished_at=None)
        make_key("needle", resource_type="order", resource_id="59")
        UserFactory(username="ada")
        analyze()

    @pytest.mark.only_on("postgresql")
    @pytest.mark.usefixtures("_in_proportion")
    @pytest.mark.parametrize("query", ["", "?q=needle", "?q=order+59", "?q=ada", "?operation=o", "?state=failed"])
    def test_no_query_reads_the_whole_table(self, admin_client: Client, query: str) -> None:
        """As the database itself says: by indexes only, and a few hundred rows and index entries of 20,000 each."""
        with CaptureQueriesContext(connection) as queries:
            found = admin_client.get(reverse(LIST) + query).context["cl"].overview
        if not query:
            assert numbers(found.numbers)["in_doubt"] == numbers(found.numbers)["stuck"] == "50+"
        ours = [query["sql"] for query in queries if "django_idempotency_idempotency" in query["sql"]]
        assert ours
        for sql in ours:
            scans, rows = planned(sql)
            assert "Seq Scan" not in scans, sql
            assert rows <= 2000, (rows, sql)

    @pytest.mark.only_on("postgresql")
    @pytest.mark.usefixtures("_in_proportion")
    def test_such_a_query_would_be_seen(self) -> None:
        """The plan of a query without a bound."""
        with CaptureQueriesContext(connection) as queries:
            IdempotencyKey.objects.count()
        assert planned(queries[0]["sql"])[1] >= 20_000

    @pytest.mark.only_on("postgresql")
    @pytest.mark.parametrize("state", [name for name in BY_INDEX if name not in ("half_done", "failed")])
    def test_a_single_key_is_found_by_its_index(self, state: str) -> None:
        """Also where the planner expects thousands."""
        last = make_many(20_000)
        locked = timezone.now() + (HOUR if state == "in_flight" else -HOUR)
        IdempotencyKey.objects.filter(pk=last).update(status="in_progress", locked_until=locked)
        IdempotencyStep.objects.filter(key=last).update(finished_at=None)
        analyze()
        with CaptureQueriesContext(connection) as queries:
            assert find(state, IdempotencyKey.objects.all())[0] == [last]
        for query in queries:
            scans, rows = planned(query["sql"])
            assert "Seq Scan" not in scans, query["sql"]
            assert rows <= (2000 if "expires_at" in query["sql"] or " IN (" in query["sql"] else 10), query["sql"]
