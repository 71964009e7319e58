"""One decision about many keys."""

from __future__ import annotations

import pytest

from django_idempotency.engine.protocol.snapshots import Snapshot
from django_idempotency.maintenance import (
    Resolved,
    close_with,
    in_doubt,
    record_outcome,
    release_for_retry,
    resolve_all,
    stuck,
)
from django_idempotency.maintenance.decisions import decisions_of
from django_idempotency.models import IdempotencyKey, IdempotencyStep
from django_idempotency.testing import create_key
from tests.expired import make_leased

pytestmark = pytest.mark.django_db
CLOSED = Snapshot(status_code=410, headers=(), body=b"")


@pytest.fixture(autouse=True)
def _keys() -> None:
    make_leased("doubt 1", "failed", doubt=True)
    make_leased("doubt 2", "failed", doubt=True)
    make_leased("stuck", "in_progress", lapsed=True)
    make_leased("running", "in_progress", lapsed=False, doubt=True)


def statuses() -> dict[str, str]:
    return dict(IdempotencyKey.objects.order_by("pk").values_list("key", "status"))


def test_each_listed_key_is_resolved() -> None:
    """And no other one."""
    assert resolve_all(in_doubt(), close_with, CLOSED) == Resolved(resolved=2, refused=0)
    assert resolve_all(stuck(), release_for_retry) == Resolved(resolved=1, refused=0)
    assert statuses() == {"doubt 1": "completed", "doubt 2": "completed", "stuck": "failed", "running": "in_progress"}


def test_arguments_are_those_of_the_decision() -> None:
    """Beside the key, its attempt and its database."""
    assert resolve_all(in_doubt(), record_outcome, "call", {"id": 1}) == Resolved(resolved=2, refused=0)
    assert set(IdempotencyStep.objects.filter(name="call").values_list("result", flat=True)) == {
        None,  # of "running"
        '{"value": {"id": 1}}',
    }


def test_a_key_that_cannot_be_resolved_now_is_counted() -> None:
    """The others are resolved all the same."""
    assert resolve_all(IdempotencyKey.objects.all(), release_for_retry) == Resolved(resolved=3, refused=1)
    assert statuses()["running"] == "in_progress"


@pytest.mark.django_db(databases=["default", "other"])
def test_it_works_on_the_database_of_the_keys() -> None:
    """The one that the query names. Rows of another database may have the same numbers."""
    for number in (1, 2):
        create_key(f"other {number}", status="abandoned", using="other")
    assert resolve_all(stuck(using="other"), release_for_retry) == Resolved(resolved=2, refused=0)
    assert set(IdempotencyKey.objects.using("other").values_list("status", flat=True)) == {"failed"}
    assert statuses()["stuck"] == "in_progress"
    assert resolve_all(in_doubt(using="other"), release_for_retry) == Resolved(resolved=0, refused=0)
    IdempotencyKey.objects.filter(key="doubt 1").update(attempt=7)
    assert resolve_all(in_doubt(using="default"), release_for_retry) == Resolved(resolved=2, refused=0)


def test_all_that_cannot_be_resolved_are_counted() -> None:
    """Two completed keys, and one with a live lease."""
    IdempotencyKey.objects.filter(key__startswith="doubt").update(status="completed")
    assert resolve_all(IdempotencyKey.objects.all(), release_for_retry) == Resolved(resolved=1, refused=3)


def test_each_key_says_who_decided_and_why() -> None:
    """In its trail."""
    resolve_all(in_doubt(), release_for_retry, by="ada", reason="the gateway was down")
    for key in IdempotencyKey.objects.filter(key__startswith="doubt"):
        assert [(made.by, made.reason) for made in decisions_of(key)] == [("ada", "the gateway was down")]


def test_what_was_listed_is_decided_about() -> None:
    """A query that was read already is not asked again: not about a key that fails meanwhile, nor about a retry."""
    listed = in_doubt().order_by("pk")
    assert [key.key for key in listed] == ["doubt 1", "doubt 2"]
    IdempotencyKey.objects.filter(key="doubt 1").update(attempt=2)
    make_leased("doubt 3", "failed", doubt=True)
    assert resolve_all(listed, close_with, CLOSED) == Resolved(resolved=1, refused=1)
    assert [statuses()[f"doubt {number}"] for number in (1, 2, 3)] == ["failed", "completed", "failed"]


@pytest.mark.django_db(databases=["default", "other"])
def test_rows_may_be_given() -> None:
    """Each is decided about in the database that it was read from."""
    create_key("other", status="abandoned", using="other")
    rows = [*stuck(), *stuck(using="other")]
    assert resolve_all(rows, release_for_retry) == Resolved(resolved=2, refused=0)
    assert (statuses()["stuck"], IdempotencyKey.objects.using("other").get().status) == ("failed", "failed")
