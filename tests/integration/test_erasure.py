"""What is forgotten, what is kept, and what it costs."""

from __future__ import annotations

from collections.abc import Callable
from threading import Barrier
from typing import Any

import pytest
from django.contrib.auth.models import AnonymousUser
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from django_idempotency import IdempotencyConfigurationError
from django_idempotency.maintenance import erasure
from django_idempotency.maintenance.erasure import Forgotten, forget, forget_scope, scope_of_user
from django_idempotency.models import IdempotencyKey, IdempotencyStep
from django_idempotency.testing import create_key
from tests.factories import UserFactory
from tests.plans import analyze, empty_tables
from tests.shopapp.models import Order

Post = Callable[..., Any]
Threads = Callable[..., list[Any]]
pytestmark = [pytest.mark.django_db, pytest.mark.urls("tests.testing.endpoint_urls")]
NOTHING = Forgotten(deleted=0, kept=0)


def keys() -> set[tuple[str, str, str]]:
    return set(IdempotencyKey.objects.values_list("scope", "operation", "key"))


def add_step(row: IdempotencyKey, *, finished: bool) -> None:
    at = row.created_at
    IdempotencyStep.objects.create(
        key=row, name="charge", kind="call", attempt=1, started_at=at, finished_at=at if finished else None
    )


def test_a_forgotten_key_runs_again(post: Post) -> None:
    """As if it had never been seen."""
    post("/good", key="k1")
    assert forget("anonymous", "k1") == Forgotten(deleted=1, kept=0)
    assert post("/good", key="k1").headers["Idempotency-Replayed"] == "false"
    assert Order.objects.count() == 2


def test_only_this_key_of_this_caller_goes() -> None:
    """Under every operation it was used for, or under one."""
    for scope, operation, key in [("a", "x", "k"), ("a", "y", "k"), ("a", "x", "K"), ("b", "x", "k")]:
        create_key(key, scope=scope, operation=operation)
    assert forget("a", "k", operation="y") == Forgotten(deleted=1, kept=0)
    assert keys() == {("a", "x", "k"), ("a", "x", "K"), ("b", "x", "k")}
    create_key("k", scope="a", operation="y")
    assert forget("a", "k") == Forgotten(deleted=2, kept=0)
    assert keys() == {("a", "x", "K"), ("b", "x", "k")}
    assert forget("A", "k") == forget("a", '"k"') == NOTHING


def test_a_callers_keys_all_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """In batches."""
    monkeypatch.setattr(erasure, "BATCH_SIZE", 3)
    user = UserFactory()
    for number in range(7):
        create_key(f"k{number}", scope=scope_of_user(user))
        create_key(f"k{number}", scope="somebody else")
    with CaptureQueriesContext(connection) as queries:
        assert forget_scope(scope_of_user(user)) == Forgotten(deleted=7, kept=0)
    assert sum("LIMIT 3" in query["sql"] for query in queries) == 4
    assert {scope for scope, _, _ in keys()} == {"somebody else"}
    assert IdempotencyKey.objects.count() == 7
    assert forget_scope(scope_of_user(user)) == NOTHING


def test_a_hashed_scope_is_forgotten_in_either_form() -> None:
    """As the endpoint returns it, and as the admin shows it."""
    scope = "x" * 300
    for key in ("k1", "k2", "k3"):
        create_key(key, scope=scope)
    shown = IdempotencyKey.objects.values_list("scope", flat=True)[0]
    assert shown.startswith("scope:")
    assert forget(shown, "k1") == forget(scope, "k2") == Forgotten(deleted=1, kept=0)
    assert forget_scope(shown) == Forgotten(deleted=1, kept=0)


def test_an_empty_table_is_nothing_to_do() -> None:
    assert forget_scope("a") == NOTHING


def test_keys_in_use_are_kept() -> None:
    """In progress, abandoned, in doubt or half done; the rest goes with its steps."""
    create_key("running", scope="a", status="in_progress")
    create_key("abandoned", scope="a", status="abandoned")
    add_step(create_key("in doubt", scope="a", status="failed"), finished=False)
    add_step(create_key("half done", scope="a", status="failed"), finished=True)
    create_key("failed", scope="a", status="failed")
    add_step(create_key("done", scope="a"), finished=True)
    add_step(create_key("done all the same", scope="a"), finished=False)
    assert forget("a", "running") == Forgotten(deleted=0, kept=1)
    assert forget_scope("a") == Forgotten(deleted=3, kept=4)
    assert {key for _, _, key in keys()} == {"running", "abandoned", "in doubt", "half done"}
    assert IdempotencyStep.objects.count() == 2


def test_unsettled_keys_go_if_they_are_asked_for() -> None:
    """Stuck, or with a call in doubt, each with its steps. A worker with a live lease keeps its key."""
    create_key("running", scope="a", status="in_progress")
    for key, status in (("abandoned", "abandoned"), ("doubt", "failed"), ("another", "failed")):
        add_step(create_key(key, scope="a", status=status), finished=False)
    create_key("no lease", scope="a", status="in_progress")
    IdempotencyKey.objects.filter(key="no lease").update(locked_until=None)
    assert forget("a", "doubt", include_unsettled=True) == Forgotten(deleted=1, kept=0)
    assert forget_scope("a", include_unsettled=True) == Forgotten(deleted=3, kept=1)
    assert {key for _, _, key in keys()} == {"running"}
    assert not IdempotencyStep.objects.exists()


@pytest.mark.django_db(databases=["default", "other"], transaction=True)
def test_on_another_database_the_same_keys_are_kept() -> None:
    """Its rows and its steps decide, in a transaction of its own."""
    create_key("doubt", scope="a", in_doubt=["charge"], using="other")
    create_key("running", scope="a", status="in_progress", using="other")
    assert forget_scope("a", using="other") == Forgotten(deleted=0, kept=2)
    assert forget_scope("a", using="other", include_unsettled=True) == Forgotten(deleted=1, kept=1)
    assert IdempotencyKey.objects.using("other").get().key == "running"


def test_only_a_saved_user_has_a_scope() -> None:
    """The same that requests get."""
    assert scope_of_user(UserFactory(pk=77)) == "user:auth.User:77"
    with pytest.raises(IdempotencyConfigurationError, match="has no primary key"):
        scope_of_user(AnonymousUser())


def test_no_stored_body_is_loaded() -> None:
    """Thousands of megabytes would be."""
    for number in range(3):
        create_key(f"k{number}", scope="a")
    with CaptureQueriesContext(connection) as queries:
        forget_scope("a")
    assert not [q["sql"] for q in queries if '"body"' in q["sql"] or "`body`" in q["sql"]]


@pytest.mark.only_on("postgresql")
def test_no_table_is_read() -> None:
    """A key is found by its hash or its scope, a scope by its own index."""
    empty_tables()
    create_key("k1", scope="a")
    # Enough rows for the planner: of one row, it may read the whole primary key as well.
    for number in range(300):
        create_key(f"other-{number}", scope="b")
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL enable_seqscan = off")
    analyze()
    with CaptureQueriesContext(connection) as queries:
        forget("a", "k1")
        forget_scope("a")
    searches = [q["sql"] for q in queries if q["sql"].startswith("SELECT") and " UPDATE" not in q["sql"]]
    plans = []
    for sql in searches:
        with connection.cursor() as cursor:
            cursor.execute("EXPLAIN " + sql)
            plans.append(" ".join(line for (line,) in cursor.fetchall()))
    assert "idempotency_scope_idx" in " ".join(plans)
    assert not [plan for plan in plans if "Seq Scan" in plan]


@pytest.mark.only_on("postgresql")
@pytest.mark.django_db(transaction=True)
def test_a_key_that_somebody_is_taking_over_is_kept(in_threads: Threads) -> None:
    """Its row is locked: it is passed over without waiting."""
    row = create_key("k1", scope="a", status="failed")
    barrier = Barrier(2, timeout=30)

    def run(number: int) -> Any:
        if number == 0:
            with transaction.atomic():
                IdempotencyKey.objects.select_for_update(no_key=True).get(pk=row.pk)
                barrier.wait()
                barrier.wait()
            return None
        barrier.wait()
        try:
            with connection.cursor() as cursor:
                cursor.execute("SET lock_timeout = '5s'")
            return forget("a", "k1")
        finally:
            barrier.wait()

    assert in_threads(2, run)[1] == Forgotten(deleted=0, kept=1)
    assert forget("a", "k1") == Forgotten(deleted=1, kept=0)
