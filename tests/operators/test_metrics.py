"""Prometheus metrics, as Prometheus reads them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from threading import Event, RLock, Semaphore
from typing import Any

import pytest
from django.db import connection, transaction
from django.utils import timezone
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from django_idempotency import IdempotencyConfigurationError, NotDecryptable, PayloadMismatch, metrics, run_once
from django_idempotency.maintenance.cleanup import cleanup_idempotency_keys
from django_idempotency.models import IdempotencyKey, IdempotencyStep
from django_idempotency.signals import key_event
from django_idempotency.testing import create_key
from tests.at_rest import NEW, OLD
from tests.expired import make_leased, without_tables
from tests.leased_urls import GATEWAY, HOOKS
from tests.leases import as_if_killed, breaks, row
from tests.roles import unprivileged
from tests.servers import DEADLINE
from tests.sql import TABLE, ask, isolated
from tests.step_rows import recount

Scrape = Callable[[], dict[tuple[Any, ...], float]]
pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.urls("tests.admin_urls")]


@pytest.fixture
def registry() -> Iterator[CollectorRegistry]:
    """Installed for one test."""
    before = list(key_event.receivers)
    registry = CollectorRegistry(auto_describe=True)
    metrics.install(registry=registry)
    yield registry
    key_event.receivers = before
    key_event.sender_receivers_cache.clear()


@pytest.fixture
def scrape(registry: CollectorRegistry) -> Scrape:
    """Every sample by its name and labels."""

    def read() -> dict[tuple[Any, ...], float]:
        families = text_string_to_metric_families(generate_latest(registry).decode())
        samples = [sample for family in families for sample in family.samples]
        return {(s.name, *s.labels.values()): s.value for s in samples if not s.name.endswith("_created")}

    return read


def test_outcomes_are_counted_by_operation(scrape: Scrape) -> None:
    """What was done, what was replayed, what was refused."""
    for _ in range(3):
        run_once(lambda: 1, scope="s", key="k", operation="o", payload=1)
    with pytest.raises(PayloadMismatch):
        run_once(lambda: 1, scope="s", key="k", operation="o", payload=2)
    run_once(lambda: 1, scope="s", key="k", operation="another")
    found = scrape().items()
    assert {tuple(labels): value for (name, *labels), value in found if name == "idempotency_key_outcomes_total"} == {
        ("o", "claimed"): 1,
        ("o", "completed"): 1,
        ("o", "replayed"): 2,
        ("o", "mismatched"): 1,
        ("another", "claimed"): 1,
        ("another", "completed"): 1,
    }


@pytest.mark.parametrize(
    ("setting", "off"), [({}, 0), ({"ENABLED": False}, 1), ({"OBSERVE": True}, 1), ({"PAUSED": True}, 0)]
)
def test_a_gauge_shows_that_protection_is_off(scrape: Scrape, settings: Any, setting: Any, off: int) -> None:
    """A pause protects."""
    settings.IDEMPOTENCY = setting
    assert scrape()["idempotency_keys_protection_off", "default"] == off


@pytest.mark.only_on("postgresql")
def test_gauges_show_atomic_mode_at_work(scrape: Scrape) -> None:
    """A request of ten minutes ago would be seen. Without rights its age is missing, and not 0."""
    names = [f"idempotency_keys_{name}" for name in ("atomic_in_flight", "oldest_atomic_in_flight_seconds")]

    def work() -> Any:
        found = scrape()
        with unprivileged():
            hidden = scrape()
        return [[gauges.get((name, "default")) for name in names] for gauges in (found, hidden)]

    (count, seconds), hidden = run_once(work, scope="s", key="k", operation="o").value
    assert count == 1
    assert 0 < seconds < 60
    assert hidden == [1, None]


def test_a_claim_and_a_replay_that_fail_are_counted(
    scrape: Scrape, settings: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """A lost encryption key, and a table that is not there. An alert has no other sign of a 500 before the view."""
    once = partial(run_once, lambda: 1, scope="s", key="k", operation="o")
    settings.IDEMPOTENCY = {"ENCRYPTION_KEYS": [OLD]}
    once()
    settings.IDEMPOTENCY = {"ENCRYPTION_KEYS": [NEW]}
    with pytest.raises(NotDecryptable):
        once()
    with without_tables("default"), pytest.raises(IdempotencyConfigurationError):
        once()
    found = scrape()
    assert found["idempotency_key_outcomes_total", "o", "error"] == 2
    errors = [record.levelname for record in caplog.records if getattr(record, "event", "") == "error"]
    assert errors == ["ERROR", "ERROR"]


def test_the_busiest_caller_is_counted_among_the_newest_keys(scrape: Scrape, monkeypatch: pytest.MonkeyPatch) -> None:
    """A flood of one caller, whoever it is: no label names a caller."""
    for number, scope in enumerate("aaabbc"):
        run_once(lambda: 1, scope=scope, key=str(number), operation="o")
    assert shown(scrape, "busiest_caller") == [3]
    monkeypatch.setattr(metrics, "NEWEST", 3)
    assert shown(scrape, "busiest_caller") == [2]


def shown(scrape: Scrape, *names: str) -> list[float]:
    gauges = scrape()
    return [gauges[f"idempotency_keys_{name}", "default"] for name in names]


STATES = ("in_flight", "in_doubt", "half_done", "stuck")


def test_a_key_is_counted_in_the_state_that_is_urgent(scrape: Scrape, post: Any) -> None:
    """A worker that has died in a call has left a doubt. Only without a call its key counts as stuck."""
    HOOKS["between"] = lambda *args: told.append(shown(scrape, *STATES))
    told: list[list[float]] = []
    post("/pay")
    assert told == [[1, 0, 0, 0]]
    HOOKS.clear()
    IdempotencyKey.objects.all().delete()
    GATEWAY.before = breaks
    with pytest.raises(Exception, match="it broke"):
        post("/pay")
    assert shown(scrape, *STATES) == [0, 1, 0, 0]
    as_if_killed()
    assert shown(scrape, *STATES) == [0, 1, 0, 0]
    IdempotencyStep.objects.all().delete()
    recount(row())
    assert shown(scrape, *STATES) == [0, 0, 0, 1]


@pytest.mark.parametrize("calls", [1, 0])
@pytest.mark.parametrize("killed", [True, False])
def test_the_age_is_that_of_the_doubt(scrape: Scrape, post: Any, calls: int, killed: bool) -> None:
    """As in the admin: since the attempt failed, or since the lease of a killed worker expired; not since the claim."""
    GATEWAY.before = breaks
    with pytest.raises(Exception, match="it broke"):
        post("/pay")
    if killed:
        as_if_killed()
    if not calls:
        IdempotencyStep.objects.filter(kind="call").update(finished_at=timezone.now())
        recount(row())
    name = "oldest_in_doubt_seconds" if calls else "oldest_half_done_seconds"
    IdempotencyKey.objects.update(created_at=timezone.now() - timedelta(days=1), updated_at=timezone.now())
    for seconds in (60, 3600):
        since = timezone.now() - timedelta(seconds=seconds)
        IdempotencyKey.objects.update(**{"locked_until" if killed else "attention_at": since})
        assert seconds <= shown(scrape, name)[0] < seconds + 100


def test_a_gauge_shows_what_is_half_done(scrape: Scrape, post: Any) -> None:
    """The charge was made, and the order was not written."""
    HOOKS["between"] = breaks
    with pytest.raises(Exception, match="it broke"):
        post("/pay")
    assert shown(scrape, *STATES) == [0, 0, 1, 0]


@pytest.mark.only_on("postgresql")
def test_a_schema_that_no_gauge_counts_is_told(scrape: Scrape) -> None:
    """A tenant's call in doubt is in no other gauge."""
    with connection.cursor() as cursor:
        try:
            cursor.execute("CREATE SCHEMA acme")
            for table in (model._meta.db_table for model in (IdempotencyKey, IdempotencyStep)):
                cursor.execute(f"CREATE TABLE acme.{table} (LIKE public.{table} INCLUDING ALL)")
            cursor.execute("SET search_path TO acme")
            make_leased("k", "failed", doubt=True)
            cursor.execute("SET search_path TO public")
            assert shown(scrape, "in_doubt", "schemas_not_counted") == [0, 1]
        finally:
            cursor.execute("SET search_path TO public; DROP SCHEMA acme CASCADE")


def test_with_nothing_to_show_the_gauges_are_zero(scrape: Scrape) -> None:
    """So that an alert can resolve."""
    assert {name: value for name, value in scrape().items() if value and "age_seconds" not in name[0]} == {}
    told = [name for name in metrics.GAUGES if "atomic" not in name or connection.vendor == "postgresql"]
    assert {name for name, *_ in scrape()} == {f"idempotency_keys_{name}" for name in told}


def test_the_lag_of_cleanup_is_the_age_of_the_oldest_expired_key(
    scrape: Scrape, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the database's clock: that of the application's host may be wrong. Only keys that a cleanup deletes count."""
    for key in ("old", "failed", "running"):
        run_once(lambda: 1, scope="s", key=key, operation="o")
    for key, hours in (("old", 1), ("failed", 2), ("running", 9)):
        IdempotencyKey.objects.filter(key=key).update(expires_at=timezone.now() - timedelta(hours=hours))
    IdempotencyKey.objects.filter(key="failed").update(status="failed", last_error="made by a test")
    IdempotencyKey.objects.filter(key="running").update(attention_at=None, status="in_progress")
    make_leased("in doubt", "failed", doubt=True)
    late = timezone.now() + timedelta(days=2)
    with monkeypatch.context() as patched:
        patched.setattr(timezone, "now", lambda: late)
        assert 7200 <= shown(scrape, "cleanup_lag_seconds")[0] < 7300
    cleanup_idempotency_keys()
    assert shown(scrape, "cleanup_lag_seconds", "purged_total") == [0, 2]


def test_a_database_that_does_not_answer_keeps_its_last_values(
    scrape: Scrape, registry: CollectorRegistry, caplog: pytest.LogCaptureFixture
) -> None:
    """No page about money resolves because the database is down. The counters are scraped all the same."""
    make_leased("k", "failed", doubt=True)
    names = ("database_unavailable", "in_doubt", "stuck")
    assert shown(scrape, *names, "age_seconds") == [0, 1, 0, 0]
    never_read = CollectorRegistry()
    never_read.register(metrics.KeyCollector())
    with without_tables("default"):
        assert shown(scrape, *names) == [1, 1, 0]
        assert shown(scrape, "age_seconds")[0] > 0
        found = [line for line in generate_latest(never_read).decode().splitlines() if not line.startswith("#")]
    assert found == [
        'idempotency_keys_database_unavailable{database="default"} 1.0',
        'idempotency_keys_protection_off{database="default"} 0.0',
    ]
    assert "could not be counted for Prometheus" in caplog.text
    assert shown(scrape, *names, "age_seconds") == [0, 1, 0, 0]


# --- a key table that cannot be read

HOLD = {"postgresql": "LOCK TABLE {} IN ACCESS EXCLUSIVE MODE", "mysql": "LOCK TABLES {} WRITE"}
LIMITS = {"postgresql": "SHOW statement_timeout", "mysql": "SELECT @@lock_wait_timeout"}


@contextmanager
def migrating() -> Iterator[None]:
    """Another session holds the key table, as a long migration does."""
    locked, done = Event(), Event()

    def migrate() -> None:
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute(HOLD[connection.vendor].format(TABLE))
            locked.set()
            assert done.wait(DEADLINE)
            if connection.vendor == "mysql":
                cursor.execute("UNLOCK TABLES")

    with ThreadPoolExecutor(1) as pool:
        migration = pool.submit(isolated(migrate))
        try:
            assert locked.wait(DEADLINE)
            yield
        finally:
            done.set()
            migration.result(DEADLINE)


def collected(collector: metrics.KeyCollector) -> dict[str, float]:
    return {sample.name: sample.value for family in collector.collect() for sample in family.samples}


@pytest.mark.only_on("postgresql", "mysql")
def test_a_migration_that_holds_the_table_ends_no_alert() -> None:
    """The scrape answers in time, with the last values. A page about money would resolve without them."""
    make_leased("k", "failed", doubt=True)
    collector = metrics.KeyCollector(timeout=0.2)
    names = ("idempotency_keys_database_unavailable", "idempotency_keys_in_doubt")
    assert [collected(collector)[name] for name in names] == [0, 1]
    with migrating():
        assert [collected(collector)[name] for name in names] == [1, 1]
    assert [collected(collector)[name] for name in names] == [0, 1]


@pytest.mark.only_on("postgresql")
def test_scrapes_of_a_held_table_do_not_take_the_last_session() -> None:
    """One session waits for the table, however many scrapes do; those that come later get the old values."""
    collector, waiting = metrics.KeyCollector(timeout=0.5), "SELECT count(*) FROM pg_locks WHERE NOT granted"
    seen = []
    with migrating(), ThreadPoolExecutor(10) as pool:
        scrapes = [pool.submit(isolated(collected), collector) for _ in range(10)]
        while not all(scrape.done() for scrape in scrapes):
            seen.append(ask(waiting)[0])
    assert max(seen) == 1
    assert {scrape.result()["idempotency_keys_database_unavailable"] for scrape in scrapes} == {1}


def test_scrapes_that_come_at_once_share_their_values(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two servers of Prometheus ask the database once."""
    asked, go_on, arrivals = list[None](), Event(), Semaphore(0)

    class Noted:
        """The collector's lock, and who has come to it."""

        def __init__(self) -> None:
            self.lock = RLock()
            self.release = self.lock.release

        def acquire(self, timeout: float) -> bool:
            arrivals.release()
            return self.lock.acquire(timeout=timeout)

    def paused() -> bool:
        asked.append(None)
        return go_on.wait(DEADLINE)

    settings.IDEMPOTENCY = {"PAUSED": paused}
    monkeypatch.setattr(metrics, "RLock", Noted)
    collector = metrics.KeyCollector(timeout=DEADLINE)
    with ThreadPoolExecutor(2) as pool:
        scrapes = [pool.submit(isolated(collected), collector) for _ in range(2)]
        assert all(arrivals.acquire(timeout=DEADLINE) for _ in scrapes)
        go_on.set()
        assert [scrape.result(DEADLINE)["idempotency_keys_paused"] for scrape in scrapes] == [1, 1]
    assert len(asked) == 1


@pytest.mark.only_on("postgresql", "mysql")
def test_the_limit_of_a_scrape_is_not_that_of_the_application(scrape: Scrape) -> None:
    """A view that serves the metrics uses the connection, and the transaction, of a request."""
    usual = ask(LIMITS[connection.vendor])
    with transaction.atomic():
        scrape()
        assert ask(LIMITS[connection.vendor]) == usual
    scrape()
    assert ask(LIMITS[connection.vendor]) == usual


# --- what stops or switches off


@pytest.mark.parametrize(("paused", "shown"), [(True, 1), (lambda: True, 1), (False, 0), (lambda: 1 // 0, None)])
def test_a_gauge_shows_a_pause(scrape: Scrape, settings: Any, paused: Any, shown: int | None) -> None:
    """A callable, too. One that fails hides no other gauge."""
    settings.IDEMPOTENCY = {"PAUSED": paused}
    found = scrape()
    assert found.get(("idempotency_keys_paused", "default")) == shown
    assert found["idempotency_keys_database_unavailable", "default"] == 0


def test_a_failing_query_of_the_switch_ends_no_other_gauge(scrape: Scrape, settings: Any) -> None:
    """Its error ends the scrape's transaction."""
    settings.IDEMPOTENCY = {"PAUSED": lambda: ask("SELECT no_such_column")}
    assert shown(scrape, "database_unavailable", "in_doubt") == [0, 0]


@pytest.mark.parametrize("setting", [{"ENABLED": False}, {"OBSERVE": True}])
def test_a_worker_counts_what_it_runs_without_protection(
    scrape: Scrape, settings: Any, post: Any, setting: Any
) -> None:
    """The process that serves the metrics may have other settings than the workers."""
    settings.IDEMPOTENCY = setting
    for _ in range(2):
        assert post("/pay").status_code == 201
    settings.IDEMPOTENCY = {}
    found = {name: value for name, value in scrape().items() if name[0] == "idempotency_key_outcomes_total"}
    assert found == {("idempotency_key_outcomes_total", "POST pay", "unprotected"): 2}


@pytest.mark.django_db
def test_a_gauge_counts_operations_that_no_endpoint_has(scrape: Scrape, settings: Any) -> None:
    """Explicit names, too. A URLconf that cannot be read says nothing about them, and keeps the other gauges."""
    for operation in ("POST gone/", "POST gone/", "pay a basket"):
        create_key(f"k-{IdempotencyKey.objects.count()}", operation=operation)
    assert scrape()["idempotency_keys_unknown_operations", "default"] == 2
    settings.ROOT_URLCONF = "no.such.urls"
    found = scrape()
    assert ("idempotency_keys_unknown_operations", "default") not in found
    assert found["idempotency_keys_in_doubt", "default"] == 0
