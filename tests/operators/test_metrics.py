"""Prometheus metrics, as Prometheus reads them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from django.db import connection
from django.utils import timezone
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from django_idempotency import IdempotencyConfigurationError, NotDecryptable, PayloadMismatch, metrics, run_once
from django_idempotency.maintenance.cleanup import cleanup_idempotency_keys
from django_idempotency.models import IdempotencyKey, IdempotencyStep
from django_idempotency.signals import key_event
from tests.at_rest import NEW, OLD
from tests.expired import make_leased, without_tables
from tests.leased_urls import GATEWAY, HOOKS
from tests.leases import as_if_killed, breaks, row
from tests.roles import unprivileged
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
    IdempotencyKey.objects.update(created_at=timezone.now() - timedelta(hours=1))
    assert 3600 <= shown(scrape, "oldest_in_doubt_seconds")[0] < 3700
    IdempotencyStep.objects.all().delete()
    recount(row())
    assert shown(scrape, *STATES) == [0, 0, 0, 1]
    assert 3600 <= shown(scrape, "oldest_stuck_seconds")[0] < 3700


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
