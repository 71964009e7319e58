"""The list of keys: its badges, filters and search, the numbers above it, and by which queries."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any

import pytest
from django.contrib.admin import site
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client, override_settings
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone

from django_idempotency import run_once
from django_idempotency.admin import IdempotencyKeyAdmin
from django_idempotency.admin import overview as limits
from django_idempotency.admin.overview import Number, attention
from django_idempotency.maintenance import in_doubt as keys_in_doubt
from django_idempotency.models import IdempotencyKey
from tests.admin_pages import HOUR, LIST, address, decide, detail, make_key, staff, step
from tests.expired import make_leased
from tests.factories import UserFactory
from tests.shopapp.models import Order
from tests.sql import ask
from tests.step_rows import add_step

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
    add_step(make_key("failed", status="failed"), kind="write", finished_at=now)  # with nothing outside
    make_key("unleased", status="in_progress", expires_at=now)  # listed once its `ttl` is over


@pytest.mark.usefixtures("one_of_each")
class TestStates:
    def test_each_key_has_one_badge_for_the_worst(self, admin_client: Client) -> None:
        """In doubt is worse than half done, and half done than stuck: money may have moved."""
        page = admin_client.get(reverse(LIST), {"p": "1"}).content.decode()
        rows = page[page.index("<tbody>") : page.index("</tbody>")].split("<tr>")[1:]
        found = {}
        for row in rows:
            (badge,) = re.findall(r'<span aria-hidden="true">.</span> (.*?)</span>', row)
            found[re.findall(r"change/[^>]*>([^<]*)<br>", row)[0]] = badge
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
        found = page.context["cl"].headline.numbers
        assert numbers(found) == {"in_flight": "2", "in_doubt": "3", "half_done": "2", "stuck": "1", "failed": "1"}
        assert str(attention(found)) == str(len(listed(admin_client, state="attention"))) == "6"
        for number in found:
            assert f'<a href="?state={number.state}"><strong>{number}</strong>' in page.content.decode()
            assert len(listed(admin_client, state=number.state)) == number.count

    def test_what_needs_attention_comes_first_with_what_to_do(self, admin_client: Client) -> None:
        """Before everything else on the page: a line for each operation and state, with its number and the oldest."""
        IdempotencyKey.objects.filter(key="doubt").update(operation="POST a&b/")
        page = admin_client.get(reverse(LIST))
        in_doubt = page.context["cl"].headline.numbers[0]
        oldest = IdempotencyKey.objects.get(key="stuck doubt").pk
        assert [(line["operation"], line["count"], line["oldest"]) for line in in_doubt.operations][1:] == [
            ("POST orders/", 2, oldest)
        ]
        text = page.content.decode()
        assert "Needs attention: 6" in text
        assert (
            text.index("Needs attention")
            < text.index("Look it up at the called service")
            < text.index('id="result_list"')
        )
        assert text.count("Look it up at the called service") == 1
        assert '<a href="?state=in_doubt&amp;operation=POST%20a%26b%2F">1 × POST a&amp;b/</a>' in text
        assert '<a href="?state=attention">All of them, oldest first</a>' in text


@pytest.mark.only_on("postgresql")
@pytest.mark.django_db(transaction=True)
def test_open_transactions_that_hold_keys_are_shown() -> None:
    """In the default mode, and only to persons who may decide. No query can read their keys before the COMMIT."""

    def work() -> list[str]:
        clients = staff(VIEW, "resolve_idempotencykey"), staff(VIEW)
        return [client.get(reverse(LIST)).content.decode() for client in clients]

    operator, other = run_once(work, scope="s", key="k", operation="o").value
    (pid,) = ask("SELECT pg_backend_pid()")
    assert f"Database process {pid}, application “" in operator
    assert re.search(r"active, open for \d+ s, keys: 1<", operator)
    assert "Running without a lease" not in other
    assert "<h3>Running without a lease: 1</h3>" in operator
    assert "Nothing needs attention" in operator


@pytest.mark.only_on("postgresql")
@pytest.mark.django_db(transaction=True)
def test_nothing_is_well_while_a_transaction_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    """For two minutes; here at once. Each retry of its key is refused meanwhile. The index page says so, too."""
    monkeypatch.setattr(limits, "HANGS", 0)

    def work() -> list[str]:
        return [staff(VIEW).get(reverse(page)).content.decode() for page in (LIST, "admin:index")]

    pages = run_once(work, scope="s", key="k", operation="o").value
    assert ["1 transaction has held keys for more than two minutes" in page for page in pages] == [True, True]
    assert ["Nothing needs attention" in page for page in pages] == [False, False]


@pytest.mark.parametrize("state", ["attention", "in_doubt", "half_done", "stuck", "completed"])
def test_a_list_of_a_state_says_what_to_do(state: str) -> None:
    """A person comes here from the overview."""
    page = staff(VIEW).get(reverse(LIST), {"state": state}).content.decode()
    assert ("<strong>What to do:</strong>" in page) == (state != "completed")


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

    def test_a_search_without_the_permission_for_users_says_what_it_has_not_searched(self) -> None:
        """And which permission that needs. A user's keys aren't missing because nobody was allowed to look."""
        ada: User = UserFactory(username="ada")
        make_key(scope=f"user:auth.User:{ada.pk}")
        told = {"without": staff(VIEW), "with": staff(VIEW, "view_user")}
        pages = {name: client.get(reverse(LIST), {"q": "ada"}) for name, client in told.items()}
        assert {name: len(page.context["cl"].result_list) for name, page in pages.items()} == {"without": 0, "with": 1}
        texts = {name: page.content.decode() for name, page in pages.items()}
        unsearched = "but not as a user name: for that, you need the permission auth.view_user."
        assert {name: unsearched in text for name, text in texts.items()} == {"without": True, "with": False}
        offered = "or a resource (“59”, “order 59”).", "a resource (“59”, “order 59”) or a user name."
        assert [[text in page for text in offered] for page in texts.values()] == [[True, False], [False, True]]

    def test_an_empty_search_offers_the_next_step(self) -> None:
        """What a key looks like, what it means that there is none, and where to go from here."""
        make_key("k-1")
        empty, found = (staff(VIEW).get(reverse(LIST), {"q": text}).content.decode() for text in ("k-", "k-1"))
        assert ("Nothing was found. A part of a text never matches" in empty, "Nothing was found." in found) == (
            True,
            False,
        )
        assert '<a href="?state=attention">The keys that need attention</a>' in empty

    def test_the_title_asks_for_nothing(self, admin_client: Client) -> None:
        """Django's, "Select idempotency key to view", would stand above an alarm."""
        page = admin_client.get(reverse(LIST)).content.decode()
        assert "<h1>Idempotency keys</h1>" in page
        text = re.sub(r"(?:<[^>]*>|&rsaquo;|\s)+", " ", page)
        assert text.count("Home Idempotency Idempotency keys ") == 1

    def test_a_page_says_what_it_has_searched(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """What is not listed may be older, and a number that stops says so."""
        monkeypatch.setattr(limits, "LISTED", 3)
        monkeypatch.setattr(limits, "FILTERED", 4)
        start = datetime(2026, 7, 1, 12, tzinfo=UTC)
        for number in range(6):
            make_key(f"k-{number}", created_at=start + number * HOUR, resource_type="order", resource_id=str(number))

        def told(**query: str) -> str:
            return staff(VIEW).get(reverse(LIST), query).content.decode()

        for query in ({"operation": "POST orders/"}, {"state": "completed"}):
            page = told(**query)
            assert "which go back to 2026-07-01 09:00:00 CDT (2026-07-01 14:00:00 UTC)." in page
            assert "at least 3 idempotency keys" in page
        assert "at least 3 idempotency keys" in told()
        page = told(state="in_doubt")
        assert "Searched all keys, through the index of this state." in page
        assert re.search(r"\n0 idempotency keys", page)
        page = told(q="order 3")
        assert "Searched all keys for this text as a complete key, reference, resource" in page
        assert "at least" not in page


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
        make_key("by a client", scope=f"for:user:auth.User:{ada.pk}+application:shop.Client:5")
        make_key("unknown", scope="anonymous")
        make_key("hook", scope="stripe")
        assert listed(admin_client, q="ada") == listed(staff(VIEW, "view_user"), q="ada") == ["by a client", "hers"]
        assert listed(staff(VIEW), q="ada") == []
        assert listed(staff(VIEW), q=f"user:auth.User:{ada.pk}") == ["by a client", "hers"]
        assert listed(admin_client, q="anonymous") == ["unknown"]
        assert listed(admin_client, q="stripe") == ["hook"]
        assert listed(admin_client, q="bob") == []


class TestAlias:
    """The database of the pages: the alias that keys are written to, and never a replica."""

    READS_THE_REPLICA = {"DATABASE_ROUTERS": ["tests.routers.OtherIsRead"]}

    @pytest.mark.urls("tests.admin_urls")
    @pytest.mark.parametrize("query", ["", "?state=in_doubt", "?q=k", "?operation=POST+pay/hold"])
    def test_no_page_reads_a_replica(self, operator: Client, in_doubt: IdempotencyKey, query: str) -> None:
        """A query to the replica is an error here: the test may ask `default` only."""
        history = reverse("admin:django_idempotency_idempotencykey_history", args=[in_doubt.pk])
        with override_settings(**self.READS_THE_REPLICA):
            for page in (reverse(LIST) + query, detail(in_doubt), history):
                assert operator.get(page, follow=True).status_code == 200

    @pytest.mark.urls("tests.admin_urls")
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
