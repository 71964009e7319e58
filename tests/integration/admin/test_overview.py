"""The numbers above the admin's list, what they cost, and how far they look (limits.py)."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime
from typing import Any

import pytest
from django.db import connection
from django.db.models import QuerySet
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone

from django_idempotency.admin import limits
from django_idempotency.admin.overview import Number, overview
from django_idempotency.engine.stores import store_for
from django_idempotency.maintenance import in_doubt, in_flight, stuck
from django_idempotency.models import IdempotencyKey, IdempotencyStep
from tests.admin_pages import HOUR, LIST, fill, make_key, staff, step
from tests.plans import analyze, make_many, planned

pytestmark = pytest.mark.django_db
Find = Callable[[], QuerySet[IdempotencyKey]]


def shown(found: list[Number]) -> dict[str, str]:
    return {re.sub("<.*?>", "", number.label)[2:]: str(number) for number in found}


@pytest.fixture
def one_of_each() -> None:
    now = timezone.now()
    make_key("done")
    step(make_key("live", status="in_progress", locked_until=now + HOUR, created_at=now - 3 * HOUR))
    make_key("live too", status="in_progress", locked_until=now + HOUR, created_at=now - HOUR)
    make_key("stuck", status="in_progress", locked_until=now - HOUR, created_at=now - 5 * HOUR)
    step(make_key("failed in doubt", status="failed"))
    step(make_key("failed", status="failed"), finished=True)
    step(make_key("stuck in doubt", status="in_progress", locked_until=now - HOUR))


class TestNumbers:
    @pytest.mark.usefixtures("one_of_each")
    def test_they_count_what_their_links_list(self) -> None:
        """A key that is stuck and in doubt counts as both."""
        client = staff("view_idempotencykey")
        found = client.get(reverse(LIST)).context["cl"].overview
        assert shown(found.numbers) == {
            "in doubt": "2",
            "half done": "1",
            "stuck": "2",
            "failed": "2",
            "in flight": "2",
            "completed": "1",
        }
        for number in found.numbers:
            listed = client.get(reverse(LIST) + number.query).context["cl"].result_count
            assert listed == number.count > 0, number

    @pytest.mark.usefixtures("one_of_each")
    def test_the_oldest_in_flight_tells_its_age(self, admin_client: Client) -> None:
        """Of those with a live lease: a stuck key has a number of its own."""
        found = admin_client.get(reverse(LIST)).context["cl"].overview
        assert [number.note for number in found.numbers[4:]] == ["oldest: 3\xa0hours", "of the latest 7 keys"]

    @pytest.mark.usefixtures("one_of_each")
    def test_a_number_ends_at_its_limit_and_says_so(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """`2+` means two or more."""
        monkeypatch.setattr(limits, "LISTED", 2)
        monkeypatch.setattr(limits, "FILTERED", 2)
        found = overview(IdempotencyKey.objects.all())
        assert shown(found.numbers)["stuck"] == shown(found.numbers)["in flight"] == "2+"
        assert found.numbers[-1].note == "of the latest 2 keys"

    def test_an_empty_table_is_no_error(self, admin_client: Client) -> None:
        """Zeros."""
        page = admin_client.get(reverse(LIST))
        assert {*shown(page.context["cl"].overview.numbers).values()} == {"0"}
        assert "Nothing needs attention" in page.content.decode()

    def test_numbers_are_grouped(self) -> None:
        """As people write them."""
        assert str(Number(label="", query="", count=2000, limited=True)) == "2,000+"

    @pytest.mark.usefixtures("one_of_each")
    def test_they_count_what_this_person_may_see(self) -> None:
        """A project whose admin shows the keys of one tenant counts those."""
        found = overview(IdempotencyKey.objects.filter(key__startswith="live"))
        assert {name: number for name, number in shown(found.numbers).items() if number != "0"} == {"in flight": "2"}
        assert found.oldest == []

    @pytest.mark.django_db(databases=["default", "other"])
    def test_they_are_of_the_queryset_s_alias(self, django_assert_num_queries: Any) -> None:
        """Nothing is asked elsewhere."""
        now = timezone.now()
        fill([now], using="other", status="in_progress", locked_until=now + HOUR)
        with django_assert_num_queries(0):
            found = overview(IdempotencyKey.objects.using("other"))
        assert {name: number for name, number in shown(found.numbers).items() if number != "0"} == {"in flight": "1"}
        assert found.numbers[-1].note == "of the latest 1 keys"


class TestAttention:
    @pytest.mark.usefixtures("one_of_each")
    def test_the_oldest_come_first_with_what_to_do(self, admin_client: Client) -> None:
        """Before everything else on the page."""
        page = admin_client.get(reverse(LIST))
        oldest = page.context["cl"].overview.oldest
        assert [waiting.row.key for waiting in oldest] == ["stuck", "failed in doubt", "failed", "stuck in doubt"]
        assert [waiting.to_do.partition(" ")[0] for waiting in oldest] == ["Ask", "Look", "Ask", "Look"]
        text = page.content.decode()
        assert text.index("Needs attention") < text.index("Look the call up") < text.index('id="result_list"')
        assert f"POST orders/ {oldest[0].row.reference}" in text

    def test_a_view_that_ended_its_own_transaction_is_told_apart(self) -> None:
        """A retry would be refused."""
        make_key("unleased", status="in_progress", locked_until=timezone.make_aware(datetime.min.replace(year=1970)))
        with connection.cursor() as cursor:
            store = store_for("default")
            cursor.execute(f"UPDATE django_idempotency_idempotencykey SET locked_until = {store.dialect.no_lease}")
        assert [waiting.to_do for waiting in overview(IdempotencyKey.objects.all()).oldest] == [
            "Check what the view has written. Finish it and answer by hand, or undo it and release the key."
        ]

    @pytest.mark.usefixtures("one_of_each")
    def test_it_ends_with_the_oldest_five(self, monkeypatch: pytest.MonkeyPatch, settings: Any) -> None:
        """The rest is behind a link, beside the one to the runbook."""
        monkeypatch.setattr(limits, "FIRST", 1)
        settings.IDEMPOTENCY = {"RUNBOOK_URL": "/runbook/"}
        page = staff("view_idempotencykey").get(reverse(LIST))
        assert len(page.context["cl"].overview.oldest) == 1
        text = page.content.decode()
        assert '<a href="?state=attention">All of them, the oldest first</a>' in text
        assert '<a href="/runbook/" rel="noopener noreferrer">Runbook</a>' in text


class TestPage:
    @pytest.mark.parametrize("query", [{"q": "done"}, {"state": "completed"}, {"p": "1"}, {"state": "stuck"}])
    def test_only_the_plain_list_has_them(self, admin_client: Client, query: dict[str, str]) -> None:
        """Whoever searches or filters waits for what he asked for."""
        make_key("done")
        assert b"idempotency-overview" in admin_client.get(reverse(LIST)).content
        assert b"idempotency-overview" not in admin_client.get(reverse(LIST), query).content

    def test_without_the_permission_nothing_is_asked(self) -> None:
        """Not even a count."""
        client = staff("view_response")
        with CaptureQueriesContext(connection) as queries:
            assert client.get(reverse(LIST)).status_code == 403
        assert not [q for q in queries if "django_idempotency_idempotencykey" in q["sql"]]

    def test_it_needs_no_inline_style_or_script(self, admin_client: Client) -> None:
        """A strict Content-Security-Policy forbids both."""
        make_key("done", status="failed")
        page = admin_client.get(reverse(LIST)).content.decode()
        ours = page[page.index("<section") : page.index("</section>")]
        assert not re.findall(r"<(?:style|script)|\s(?:style|on\w+)=", ours)


@pytest.mark.only_on("postgresql")
class TestCost:
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
        analyze()

    @pytest.mark.usefixtures("_in_proportion")
    def test_no_query_reads_the_whole_table(self, admin_client: Client) -> None:
        """As the database itself says: by indexes only, and a few hundred rows and index entries of 20,000 each."""
        with CaptureQueriesContext(connection) as queries:
            found = admin_client.get(reverse(LIST)).context["cl"].overview
        asked = [query["sql"] for query in queries if "django_idempotency_idempotency" in query["sql"]]
        assert shown(found.numbers) == {
            "in doubt": "50+",
            "half done": "50+",
            "stuck": "50+",
            "failed": "50+",
            "in flight": "50+",
            "completed": "20",
        }
        assert len(asked) == 24  # the list with its badges, links and filters, and the overview
        for sql in asked:
            scans, rows = planned(sql)
            assert scans, sql
            assert "Seq Scan" not in scans, sql
            assert rows <= 400, (rows, sql)

    @pytest.mark.usefixtures("_in_proportion")
    def test_such_a_query_would_be_seen(self) -> None:
        """What the test above rules out: a sequential scan, and an index that is read to its end."""
        everything = IdempotencyKey.objects.order_by().values("status")
        assert "Seq Scan" in planned(str(everything.query))[0]
        assert planned(str(everything.order_by("-pk").filter(status_code=404).query))[1] >= 20_000

    @pytest.mark.parametrize("find", [in_flight, stuck, in_doubt])
    def test_a_single_key_that_needs_attention_is_found_by_its_index(self, find: Find) -> None:
        """By a partial index, which holds this key alone."""
        last = make_many(20_000)
        until = timezone.now() + (HOUR if find is in_flight else -HOUR)
        IdempotencyKey.objects.filter(pk=last).update(status="in_progress", locked_until=until)
        IdempotencyStep.objects.filter(key=last).update(finished_at=None)
        analyze()
        with CaptureQueriesContext(connection) as queries:
            assert list(find().values_list("pk", flat=True)[:2000]) == [last]
        scans, rows = planned(queries[-1]["sql"])
        assert scans
        assert "Seq Scan" not in scans
        assert rows <= 10
