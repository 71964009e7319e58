"""10,000 keys in flight on PostgreSQL: whoever comes reads a few pages, by an index.

Counted by the database itself, whatever the statements look like and whichever plan it has chosen for them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection, transaction
from django.urls import reverse
from django.utils import timezone

from django_idempotency.admin import overview as limits
from django_idempotency.engine.protocol.digests import key_hash
from django_idempotency.engine.stores import store_for
from django_idempotency.maintenance import renamed
from django_idempotency.models import IdempotencyKey, IdempotencyStep
from django_idempotency.testing import create_key
from tests.admin_pages import staff
from tests.servers import eventually
from tests.sql import ask

Post = Callable[..., Any]
pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.only_on("postgresql"),
    pytest.mark.urls("tests.attacks.stored_urls"),
]
IN_FLIGHT = 10_000
KEYS = (
    "INSERT INTO django_idempotency_idempotencykey (key_hash, scope_hash, scope, operation, key, status, attempt, "
    "unknown, locked_until, created_at, updated_at, expires_at) SELECT {key_hash}, n, 'user:' || n, 'POST create', "
    "'in-flight', 'in_progress', 1, 1, {locked_until}, now(), now(), now() + interval '1 day' "
    "FROM generate_series(1, {count}) AS n "
    "RETURNING id, key_hash, scope_hash"
)
CALLS = (
    "INSERT INTO django_idempotency_idempotencystep "
    "(key_id, key_hash, scope_hash, name, kind, attempt, started_at) "
    "SELECT id, key_hash, scope_hash, 'charge', 'call', 1, now() FROM keys"
)


def fly(database: Any, key_hash: str = "n", locked_until: str = "now() + interval '1 hour'") -> None:
    """Keys in progress, each with an external call that is being made."""
    keys = KEYS.format(key_hash=key_hash, locked_until=locked_until, count=IN_FLIGHT)
    with database.cursor() as cursor:
        cursor.execute(f"WITH keys AS ({keys}) {CALLS}")


def await_end(sessions: str) -> None:
    """A session brings its numbers of pages at its end, which may be later than what it did."""
    eventually("sessions to end", lambda: not ask(f"SELECT count(*) FROM pg_stat_activity WHERE {sessions}")[0])


@contextmanager
def uncommitted() -> Iterator[None]:
    """As in atomic mode: nobody sees them, but the index holds them."""
    other: Any = connection.copy()
    other.set_autocommit(False)
    process = other.connection.info.backend_pid
    try:
        fly(other, locked_until="NULL")
        yield
    finally:
        other.rollback()
        other.close()
        await_end(f"pid = {process}")


@contextmanager
def committed(**values: str) -> Iterator[None]:
    fly(connection, **values)
    yield


FLIGHTS: dict[str, Callable[[], Any]] = {
    "leased": committed,
    "abandoned": lambda: committed(locked_until="now() - interval '1 hour'"),
    "one key of many callers": lambda: committed(key_hash=str(key_hash("in-flight"))),
    "atomic": uncommitted,
}


@pytest.fixture(autouse=True)
def _nobody_else_reads() -> Iterator[None]:
    """Autovacuum's pages are counted too, and so are those of rows that other tests have rolled back."""
    tables = [model._meta.db_table for model in (IdempotencyKey, IdempotencyStep)]
    with connection.cursor() as cursor:
        for table in tables:
            cursor.execute(f"ALTER TABLE {table} SET (autovacuum_enabled = false)")
            cursor.execute(f"VACUUM FULL {table}")
        await_end("backend_type = 'autovacuum worker' AND datname = current_database()")
        yield
        for table in tables:
            cursor.execute(f"ALTER TABLE {table} RESET (autovacuum_enabled)")


def reads(work: Callable[[], Any]) -> tuple[int, int]:
    """How often whole tables of the package were read meanwhile, and how many pages of tables and indexes."""
    before = counters()
    work()
    after = counters()
    return after[0] - before[0], after[1] - before[1]


def counters() -> tuple[int, int]:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_stat_force_next_flush()")
        cursor.execute(
            "SELECT sum(seq_scan), sum(heap_blks_hit + heap_blks_read + idx_blks_hit + idx_blks_read) "
            "FROM pg_stat_user_tables JOIN pg_statio_user_tables AS pages USING (relid) "
            "WHERE pages.relname LIKE 'django_idempotency_%%'",
            [],
        )
        whole, pages = cursor.fetchone()
    return int(whole), int(pages)


@pytest.mark.parametrize("analyzed", [True, False])
@pytest.mark.parametrize("flight", FLIGHTS)
def test_a_request_reads_its_own_row(post: Post, flight: str, analyzed: bool) -> None:
    """First-hand, replayed, leased, refused because it is running: some pages, whatever the planner knows."""
    create_key("running", operation="POST create", status="in_progress")
    requests = [
        ("/create", "in-flight", 200, 40),
        ("/create", "in-flight", 200, 20),
        ("/leased", "in-flight", 200, 120),
        ("/leased", "in-flight", 200, 20),
        ("/create", "running", 409, 20),
    ]
    with FLIGHTS[flight]():
        if analyzed:
            connection.cursor().execute("ANALYZE")
        for path, key, status, most in requests:
            whole, pages = reads(lambda: expect(status, post(path, key=key)))  # noqa: B023 (called at once)
            assert (whole, pages <= most) == (0, True), (path, key, pages)


@pytest.mark.parametrize("flight", ["abandoned", "one key of many callers"])
def test_the_admin_and_the_cleanup_read_what_they_show_and_delete(flight: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lists and numbers end at their limits, and a purge does not look at keys that are living."""
    # In proportion to 10,000 keys: the whole table would be less than the limits.
    for name, limit in {"LISTED": 200, "FILTERED": 1000}.items():
        monkeypatch.setattr(limits, name, limit)
    monkeypatch.setattr(renamed, "READ", 10)
    for _ in range(100):
        create_key()
    past = timezone.now() - timedelta(days=2)
    IdempotencyKey.objects.update(created_at=past, completed_at=past, expires_at=past)
    operator = staff("view_idempotencykey")
    changelist = reverse("admin:django_idempotency_idempotencykey_changelist")
    with FLIGHTS[flight]():
        connection.cursor().execute("ANALYZE")
        for page in ("", "?state=stuck", "?q=in-flight"):
            whole, pages = reads(lambda: expect(200, operator.get(changelist + page)))  # noqa: B023 (called at once)
            # Of 200 keys that may be half done, the steps are looked up, too.
            assert (whole, pages <= 2000) == (0, True), (page, pages)
        whole, pages = reads(purge)
        assert (whole, pages <= 1000) == (0, True), pages


def expect(status: int, answer: Any) -> None:
    assert answer.status_code == status


def purge() -> None:
    with transaction.atomic():
        assert store_for("default").purge(5000)[0] == 100
