"""The numbers and the chart above the admin's list, what they cost, and how far they look (limits.py)."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest
from django.db import connection
from django.test import Client, override_settings
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone, translation

from django_idempotency.admin import limits
from django_idempotency.admin.hours import Hours, last_hours, sampled
from django_idempotency.admin.overview import Number, overview
from django_idempotency.engine.stores import store_for
from django_idempotency.models import IdempotencyKey, IdempotencyStep
from tests.admin_pages import HOUR, LIST, fill, make_key, staff, step

pytestmark = pytest.mark.django_db


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
        """By status, in flight, stuck and in doubt."""
        client = staff("view_idempotencykey")
        found = client.get(reverse(LIST)).context["cl"].overview
        assert shown(found.by_status) == {"in progress": "4", "completed": "1", "failed": "2"}
        assert shown(found.now) == {"in flight": "2", "stuck": "2", "in doubt": "2"}
        for number in (*found.by_status, *found.now):
            listed = client.get(reverse(LIST) + number.query).context["cl"].result_count
            assert listed == number.count > 0, number

    @pytest.mark.usefixtures("one_of_each")
    def test_the_oldest_in_flight_tells_its_age(self, admin_client: Client) -> None:
        """Of those with a live lease: a stuck key has a number of its own."""
        found = admin_client.get(reverse(LIST)).context["cl"].overview
        assert [number.note for number in found.now] == ["oldest: 3\xa0hours", "", ""]

    @pytest.mark.usefixtures("one_of_each")
    def test_a_number_ends_at_its_limit_and_says_so(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """`2+` means two or more."""
        monkeypatch.setattr(limits, "LISTED", 2)
        monkeypatch.setattr(limits, "FILTERED", 5)
        found = overview(IdempotencyKey.objects.all())
        assert shown(found.now) == {"in flight": "2+", "stuck": "2+", "in doubt": "2+"}
        assert found.latest_title == "Latest 5 keys by status"

    def test_an_empty_table_is_no_error(self, admin_client: Client) -> None:
        """Zeros, and a chart that says so."""
        page = admin_client.get(reverse(LIST))
        found = page.context["cl"].overview
        assert {*shown(found.now).values(), *shown(found.by_status).values()} == {"0"}
        assert found.hours.description == "No keys."

    def test_numbers_are_grouped(self) -> None:
        """As people write them."""
        assert str(Number(label="", query="", count=2000, limited=True)) == "2,000+"

    @pytest.mark.usefixtures("one_of_each")
    def test_they_count_what_this_person_may_see(self) -> None:
        """A project whose admin shows the keys of one tenant counts those."""
        found = overview(IdempotencyKey.objects.filter(key__startswith="live"))
        assert shown(found.by_status) == {"in progress": "2", "completed": "0", "failed": "0"}
        assert shown(found.now) == {"in flight": "2", "stuck": "0", "in doubt": "0"}
        assert sum(found.hours.counts) == 2

    @pytest.mark.django_db(databases=["default", "other"])
    def test_they_are_of_the_queryset_s_alias(self, django_assert_num_queries: Any) -> None:
        """Nothing is asked elsewhere."""
        now = timezone.now()
        fill([now], using="other", status="in_progress", locked_until=now + HOUR)
        with django_assert_num_queries(0):
            found = overview(IdempotencyKey.objects.using("other"))
        assert shown(found.now) == {"in flight": "1", "stuck": "0", "in doubt": "0"}
        assert (found.latest, sum(found.hours.counts)) == (1, 1)


class TestPage:
    @pytest.mark.parametrize("query", [{"q": "done"}, {"status": "completed"}, {"p": "1"}, {"attention": "stuck"}])
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

    def test_the_drawing_is_the_same_in_every_language(self, admin_client: Client) -> None:
        """A number with a comma or a dot is no number of SVG; the words have them."""
        now = timezone.now()
        fill([now] * 3000)
        with override_settings(USE_THOUSAND_SEPARATOR=True, LANGUAGE_CODE="de"), translation.override("de"):
            page = admin_client.get(reverse(LIST), headers={"Accept-Language": "de"}).content.decode()
        drawing = page[page.index("<figure") : page.index("</figure>")].partition("</svg>")[0]
        assert re.findall(r'<rect x="414" y="16" width="15" height="72"/>', drawing)
        assert not re.findall(r'="\d+[.,]\d+"', drawing)

    def test_it_needs_no_inline_style_or_script(self, admin_client: Client) -> None:
        """A strict Content-Security-Policy forbids both."""
        make_key("done", status="failed")
        page = admin_client.get(reverse(LIST)).content.decode()
        ours = page[page.index("<section") : page.index("</section>")]
        assert not re.findall(r"<(?:style|script)|\s(?:style|on\w+)=", ours)


def spread(hours: list[int]) -> list[datetime]:
    """So many keys in each hour, the last one at the end; in the middle of the hours, in order."""
    starts = last_hours(timezone.now())
    return [
        start + (timedelta(seconds=1) if number == 23 else HOUR * (n + 1) / (count + 1))
        for number, (start, count) in enumerate(zip(starts, hours, strict=True))
        for n in range(count)
    ]


def counted() -> Hours:
    newest = IdempotencyKey.objects.order_by("-pk").values_list("pk", flat=True).first()
    return Hours.of(IdempotencyKey.objects.all(), newest or 0)


class TestHours:
    def test_few_keys_are_counted_exactly(self) -> None:
        """Each in the hour in which it was created; older ones are left out."""
        hours = [0, 3, 7] * 8
        fill([timezone.now() - 30 * HOUR] * 3 + spread(hours))
        found = counted()
        assert (found.counts, found.estimated) == (hours, False)
        assert [bar.keys for bar in found.bars()][:3] == ["0", "3", "7"]

    @pytest.mark.parametrize("keep", [None, 2, 3])
    def test_many_keys_are_estimated(self, monkeypatch: pytest.MonkeyPatch, keep: int | None) -> None:
        """Also where most of the numbers are free, be it every second one; nothing is estimated from a gap."""
        monkeypatch.setattr(limits, "SAMPLED", 48)
        hours = [100, 200, 0] * 8
        rows = fill(spread(hours))
        if keep:
            IdempotencyKey.objects.exclude(pk__in=[row.pk for row in rows if row.pk % keep == 0]).delete()
        found, share = counted(), keep or 1
        assert found.estimated
        if keep is None:
            for number, (count, estimate) in enumerate(zip(hours, found.counts, strict=True)):
                age = 24 - number
                assert abs(estimate - count) <= 2 * age * 100 / 48, (number, found)
        assert abs(sum(found.counts) - 2400 / share) <= 2400 / share * (0.05 if keep is None else 0.3)
        assert found.bars()[0].keys.startswith("about ")
        assert found.description.startswith("In all: about ")

    def test_a_key_that_was_used_again_counts_where_it_is(self) -> None:
        """A takeover sets `created_at` of an old row: the order of primary keys is not relied upon."""
        hours = [1] * 24
        times = spread(hours)
        fill([times[20], *times])
        assert counted().counts == [*[1] * 20, 2, 1, 1, 1]

    def test_a_clock_that_is_ahead_counts_as_now(self) -> None:
        """The database's clock is not ours."""
        fill([timezone.now() + 2 * HOUR])
        assert counted().counts == [0] * 23 + [1]

    def test_a_single_key_in_a_busy_day_has_a_bar(self) -> None:
        """However small beside the others."""
        fill(spread([1, 400] + [0] * 22))
        assert [bar.height for bar in counted().bars()][:3] == [1, 72, 0]

    @pytest.mark.parametrize(
        ("zone", "first", "last"),
        [
            ("UTC", "2026-03-28T14:00:00+00:00", "2026-03-29T13:00:00+00:00"),
            ("Asia/Kolkata", "2026-03-28T13:30:00+00:00", "2026-03-29T12:30:00+00:00"),
            ("Europe/Berlin", "2026-03-28T14:00:00+00:00", "2026-03-29T13:00:00+00:00"),  # the clocks change
        ],
    )
    def test_hours_begin_on_the_clock_and_last_an_hour(self, zone: str, first: str, last: str) -> None:
        """Where an hour is skipped or comes twice, too."""
        with timezone.override(zone):
            hours = last_hours(datetime(2026, 3, 29, 13, 29, 59, tzinfo=UTC))
        assert len(hours) == 24
        assert (hours[0].astimezone(UTC).isoformat(), hours[-1].astimezone(UTC).isoformat()) == (first, last)
        assert {b - a for a, b in pairwise(hours)} == {HOUR}

    @override_settings(USE_TZ=False)
    def test_a_project_without_time_zones_has_hours(self) -> None:
        """Naive times, as Django gives them there."""
        hours = last_hours(datetime(2026, 11, 21, 13, 45))
        assert (hours[0], hours[-1]) == (datetime(2026, 11, 20, 14), datetime(2026, 11, 21, 13))

    @pytest.mark.parametrize("newest", [0, 1, 2047, 5_000_000, 2**40])
    def test_a_sample_is_small_and_looks_at_no_key_twice(self, newest: int) -> None:
        """Each number stands for those of its step, and together they stand for all."""
        looks = dict(sampled(newest))
        assert len(looks) == len(list(sampled(newest))) <= 10_000
        assert all(0 < pk <= newest for pk in looks)
        assert abs(sum(looks.values()) - newest) <= newest * 0.005


def make_many(count: int) -> int:
    """Completed keys of the last 40 hours, a finished call each. The primary key of the last one."""
    with connection.cursor() as cursor:
        cursor.execute(
            "WITH keys AS (INSERT INTO django_idempotency_idempotencykey "
            "(key_hash, scope_hash, scope, operation, key, status, status_code, attempt, created_at, expires_at) "
            "SELECT n, n, 's', 'o', 'k' || n, 'completed', 201, 1, now() - (%s - n) * interval '40 hours' / %s, now() "
            "FROM generate_series(1, %s) AS n RETURNING id) "
            "INSERT INTO django_idempotency_idempotencystep (key_id, name, kind, attempt, started_at, finished_at) "
            "SELECT id, 'charge', 'call', 1, now(), now() FROM keys RETURNING key_id",
            [count] * 3,
        )
        return int(cursor.fetchall()[-1][0])


@pytest.mark.only_on("postgresql")
class TestCost:
    @pytest.fixture
    def _in_proportion(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """20,000 keys, and limits as they are to a table of millions."""
        monkeypatch.setattr("django_idempotency.admin.IdempotencyKeyAdmin.list_per_page", 20)
        for name, limit in {"LISTED": 50, "FILTERED": 200, "SAMPLED": 8}.items():
            monkeypatch.setattr(limits, name, limit)
        last = make_many(20_000)
        now = timezone.now()
        keys, steps = IdempotencyKey.objects.filter, IdempotencyStep.objects.filter
        keys(pk__gt=last - 90).update(status="failed")
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
        assert shown(found.now) == {"in flight": "50+", "stuck": "50+", "in doubt": "50+"}
        assert len(asked) == 4 + 9  # the list with its badges, and the overview
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

    @pytest.mark.parametrize("find", ["live_ids", "stuck_ids", "in_doubt_ids"])
    def test_a_single_key_that_needs_attention_is_found_by_its_index(self, find: str) -> None:
        """In the order of an index: the bitmap scan that this could be here would be a sequential one of millions.

        The planner does not know the clock, and takes `locked_until <= clock` for a third of all keys.
        """
        last = make_many(20_000)
        until = timezone.now() + (HOUR if find == "live_ids" else -HOUR)
        IdempotencyKey.objects.filter(pk=last).update(status="in_progress", locked_until=until)
        IdempotencyStep.objects.filter(key=last).update(finished_at=None)
        analyze()
        with CaptureQueriesContext(connection) as queries:
            assert getattr(store_for("default"), find)(2000) == [last]
        scans, rows = planned(queries[-1]["sql"])
        assert scans <= {"Index Scan", "Index Only Scan"}
        assert rows <= 10


def analyze() -> None:
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE")


def planned(sql: str) -> tuple[set[str], int]:
    """How the tables are read, and the most rows that one node of the plan has read."""
    with connection.cursor() as cursor:
        cursor.execute("EXPLAIN (ANALYZE, FORMAT JSON) " + sql.replace("%", "%%"), [])
        answer = cursor.fetchone()[0]
    nodes = list(_nodes((json.loads(answer) if isinstance(answer, str) else answer)[0]["Plan"]))
    return (
        {node["Node Type"] for node in nodes if "Scan" in node["Node Type"]},
        max((node["Actual Rows"] + node.get("Rows Removed by Filter", 0)) * node["Actual Loops"] for node in nodes),
    )


def _nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for child in plan.get("Plans", ()):
        yield from _nodes(child)
