"""The table of states: the condition of a query and the form for a row that was read say the same."""

from __future__ import annotations

from datetime import timedelta
from itertools import chain, product
from typing import Any

import pytest
from django.db import connection
from django.utils import timezone

from django_idempotency.engine.stores.states import (
    ATTENTION,
    EXPIRED,
    NEEDS_ATTENTION,
    STATES,
    STUCK,
    UNDECIDED,
    Clock,
    Seen,
    as_sql,
)
from django_idempotency.models import IdempotencyKey, IdempotencyStep

HOUR = timedelta(hours=1)
LEASES = {"none": None, "live": HOUR, "over": -HOUR}
STEPS: dict[str, list[tuple[str, bool]]] = {
    "no step": [],
    "a read": [("fetch", True)],
    "a write": [("write", True)],
    "a call": [("call", True)],
    "a call in doubt": [("call", False)],
    "a write in doubt": [("write", False)],
    "a call, and one in doubt": [("call", True), ("call", False)],
}
CASES = list(product(IdempotencyKey.Status.values, LEASES, ("kept", "over"), STEPS))


def made(number: int, status: str, lease: str, ttl: str, steps: str) -> tuple[IdempotencyKey, list[IdempotencyStep]]:
    now, left = timezone.now(), LEASES[lease]
    kinds = STEPS[steps]
    unknown = sum(not finished for _, finished in kinds)
    effects = kinds.count(("call", True))
    same = {"key_hash": number, "scope_hash": number}
    key = IdempotencyKey(
        id=number,
        **same,
        key=f"{status}, lease {lease}, ttl {ttl}, {steps}",
        status=status,
        policy="hold" if kinds else None,
        unknown=unknown,
        effects=effects,
        attention_at=now if status == "failed" and unknown + effects else None,
        locked_until=None if left is None else now + left,
        last_error="it broke" if status == "failed" else None,
        created_at=now,
        updated_at=now,
        expires_at=now + (HOUR if ttl == "kept" else -HOUR),
    )
    ended = {True: now, False: None}
    return key, [
        IdempotencyStep(
            key=key, **same, name=str(index), kind=kind, attempt=1, started_at=now, finished_at=ended[finished]
        )
        for index, (kind, finished) in enumerate(kinds)
    ]


@pytest.fixture
def rows(db: None) -> Any:
    keys, steps = zip(*(made(number, *case) for number, case in enumerate(CASES, 1)), strict=True)
    IdempotencyKey.objects.bulk_create(keys)
    IdempotencyStep.objects.bulk_create(chain.from_iterable(steps))
    return IdempotencyKey.objects.annotate(now=Clock()).prefetch_related("steps")


@pytest.mark.parametrize("name", [name for name in STATES if name != "expired"])
def test_a_query_finds_the_rows_that_are_seen_to_be_in_the_state(rows: Any, name: str) -> None:
    """One exception: a key in progress without a lease is listed when its `ttl` is over, because an index finds it."""
    found = set(IdempotencyKey.objects.filter(STATES[name].condition).values_list("key", flat=True))
    fits = STATES[name].fits
    expected = {row.key for row in rows if fits and fits(Seen(row, row.now))}
    unleased = [row for row in rows if row.status == "in_progress" and row.locked_until is None]
    too_soon = {row.key for row in unleased if row.expires_at > row.now}
    assert found == (expected - too_soon if name == "in_doubt" else expected)
    assert 0 < len(found) < len(CASES)


def test_what_needs_attention_is_in_one_of_three_states_and_never_expires(rows: Any) -> None:
    """So no cleanup deletes it, and no retry runs as if the key had never been seen."""
    keys = IdempotencyKey.objects
    found = set(keys.filter(NEEDS_ATTENTION).values_list("pk", flat=True))
    assert found == {pk for state in ATTENTION for pk in keys.filter(state.condition).values_list("pk", flat=True)}
    assert not found & set(keys.filter(EXPIRED.condition).values_list("pk", flat=True))
    assert not keys.filter(EXPIRED.condition, status="in_progress").exists()


def test_a_row_that_was_read_has_expired_if_the_query_says_so(rows: Any) -> None:
    """The admin tells a person so as the claim would tell a retry."""
    expired = set(IdempotencyKey.objects.filter(EXPIRED.condition).values_list("pk", flat=True))
    assert expired == {row.pk for row in rows if Seen(row, row.now).expired}


def test_a_decision_is_possible_about_each_idle_key(rows: Any) -> None:
    """Completed keys, and those that a worker holds, are left alone."""
    seen = [Seen(row, row.now) for row in rows]
    undecided = set(IdempotencyKey.objects.filter(UNDECIDED).values_list("pk", flat=True))
    assert undecided == {found.row.pk for found in seen if found.idle and not found.live}


def test_only_keys_without_effects_are_harmless(rows: Any) -> None:
    """Their lease is over; what a call or a write may have done is unknown of none of them."""
    names = set(IdempotencyKey.objects.filter(STUCK.condition).values_list("key", flat=True))
    assert names == {
        f"in_progress, lease over, ttl {ttl}, {steps}"
        for ttl in ("kept", "over")
        for steps in ("no step", "a read", "a write")
    }


@pytest.mark.parametrize("condition", [EXPIRED.condition, NEEDS_ATTENTION, STUCK.condition])
def test_a_condition_can_stand_in_a_statement_by_hand(rows: Any, condition: Any) -> None:
    """The stores' own statements say the same as the look-ups."""
    table = IdempotencyKey._meta.db_table
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT id FROM {table} WHERE {as_sql(condition, 'default')}", [])
        found = {pk for (pk,) in cursor.fetchall()}
    assert found == set(IdempotencyKey.objects.filter(condition).values_list("pk", flat=True)) != set()


def test_the_clock_is_the_databases(rows: Any) -> None:
    """It can be read, compared and stored, also with seconds added."""
    before = timezone.now() - timedelta(seconds=1)
    assert before < rows.first().now < timezone.now() + timedelta(seconds=1)
    IdempotencyKey.objects.update(locked_until=Clock(plus=90.5), updated_at=Clock())
    row = IdempotencyKey.objects.all()[0]
    assert timedelta(seconds=90) < row.locked_until - row.updated_at < timedelta(seconds=91)
