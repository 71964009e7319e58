"""Work that ends its own transaction in the middle: what it has committed by that is not written a second time."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.db.models import F
from django.http import HttpResponse
from django.test import Client

from django_idempotency import Operation, OutcomeUnknown, TransactionBroken, idempotent, run_once
from django_idempotency.exceptions import NotResolvable
from django_idempotency.maintenance import (
    Snapshot,
    cleanup_idempotency_keys,
    close_with,
    forget,
    forget_scope,
    in_doubt,
    record_outcome,
    release_for_retry,
)
from django_idempotency.models import IdempotencyKey, IdempotencyStep
from tests.heard import heard
from tests.http import problem
from tests.leases import breaks
from tests.shopapp.models import Order
from tests.works import commit

pytestmark = pytest.mark.django_db(transaction=True)


class Died(Exception):
    """What the work raises."""


def half() -> None:
    """One order is committed, another one is not."""
    Order.objects.create(reference="before")
    commit()
    if connection.vendor != "sqlite":  # SQLite commits each statement from here on
        Order.objects.create(reference="after")
    raise Died("boom")


def whole() -> str:
    Order.objects.create(reference="before")
    commit()
    Order.objects.create(reference="after")
    return "done"


def once(work: Any, **options: Any) -> Any:
    return run_once(work, scope="s", key="k", operation="o", **options).value


def orders() -> list[str]:
    return list(Order.objects.order_by("pk").values_list("reference", flat=True))


@pytest.fixture
def left() -> IdempotencyKey:
    """A key whose work has committed a half and then failed."""
    with pytest.raises(Died):
        once(half)
    return IdempotencyKey.objects.get()


def test_a_retry_does_not_write_again(left: IdempotencyKey) -> None:
    """The outcome is unknown, and stays so: "still being processed" would be wrong for ever."""
    for _ in range(2):
        with pytest.raises(OutcomeUnknown):
            once(half)
    assert orders() == ["before"]


def test_it_is_told_as_held() -> None:
    """Not as released: no retry runs again."""
    with heard("held") as told, pytest.raises(Died):
        once(half)
    (event,) = told
    assert (event["identity"].key, event["using"], event["reason"]) == ("k", "default", f"{__name__}.Died")


@pytest.mark.parametrize(("status", "options"), [(503, {}), (404, {"record": "success"})])
def test_an_answer_that_is_not_final_is_told_as_held(status: int, options: Any, rf: Any) -> None:
    """Not as released, either. On SQLite the end is noticed, and the answer is an error."""

    def halts(request: Any) -> HttpResponse:
        Order.objects.create(reference="before")
        commit()
        return HttpResponse(status=status)

    view = idempotent(**options)(halts)
    with heard("held", "released") as told:
        with suppress(TransactionBroken):
            assert view(rf.post("/", headers={"Idempotency-Key": "k"})).status_code == status
        assert problem(view(rf.post("/", headers={"Idempotency-Key": "k"})))["code"] == "outcome-unknown"
    assert [event["event"] for event in told] == ["held", "held"]
    assert orders() == ["before"]


def test_it_is_listed_when_its_ttl_is_over(left: IdempotencyKey) -> None:
    """And a cleanup counts it, and never deletes it."""
    IdempotencyKey.objects.update(expires_at=F("expires_at") - timedelta(days=2))
    assert (cleanup_idempotency_keys().in_doubt, cleanup_idempotency_keys().deleted) == (1, 0)
    assert in_doubt().get() == left


def test_the_admin_shows_it(left: IdempotencyKey, admin_client: Client) -> None:
    """As stuck, with what to do, and with the decisions."""
    assert b"idempotency-stuck" in admin_client.get("/admin/django_idempotency/idempotencykey/").content
    page = admin_client.get(f"/admin/django_idempotency/idempotencykey/{left.pk}/change/").content.decode()
    assert "The view ended its own transaction, then failed or died." in page
    assert "Release for retry" in page
    assert "Record an outcome" not in page


def test_released_everything_runs_again(left: IdempotencyKey) -> None:
    """A person has undone the half."""
    Order.objects.all().delete()
    release_for_retry(left)
    assert once(lambda: Order.objects.create(reference="again").reference) == "again"
    assert orders() == ["again"]
    assert IdempotencyKey.objects.get().status == "completed"


def test_closed_it_is_replayed(left: IdempotencyKey) -> None:
    close_with(left, Snapshot(status_code=200, headers=(), body=b"by hand"))
    assert once(half) == "by hand"
    assert orders() == ["before"]


def test_there_is_no_step_to_record(left: IdempotencyKey) -> None:
    """The work has no steps that a retry could go on behind."""
    with pytest.raises(NotResolvable, match="not in doubt"):
        record_outcome(left, "order", 1)
    with pytest.raises(OutcomeUnknown):
        once(half)


def test_forgotten_it_runs_again(left: IdempotencyKey) -> None:
    """If that is asked for: else what could be written twice is kept."""
    assert (forget("s", "k").kept, forget_scope("s").kept) == (1, 1)
    assert forget("s", "k", include_unsettled=True).deleted == 1
    assert once(lambda: 1) == 1


@pytest.mark.only_on("postgresql", "mysql")
def test_work_that_comes_to_its_end_is_kept() -> None:
    """All of it is committed when the answer is given."""
    assert [once(whole), once(whole)] == ["done", "done"]
    assert orders() == ["before", "after"]


@pytest.mark.only_on("postgresql", "mysql")
def test_a_retry_in_the_middle_does_not_take_the_key_away(in_threads: Callable[..., list[Any]]) -> None:
    """The worker is still there, and completes its key."""

    def retry(number: int) -> str:
        with pytest.raises(OutcomeUnknown):
            once(breaks)
        return "refused"

    def asked_meanwhile() -> list[str]:
        commit()
        return in_threads(1, retry)

    assert [once(asked_meanwhile), once(breaks)] == [["refused"], ["refused"]]


def assert_is_held(ends: Callable[[], str], error: str = "ended its own transaction in the middle") -> None:
    """The work is refused, its write after the end is committed, and a retry does not run."""
    with pytest.raises((TransactionBroken, Died), match=error):
        once(ends)
    with pytest.raises(OutcomeUnknown):
        once(ends)
    assert orders() == ["after"]


@pytest.mark.only_on("sqlite")
@pytest.mark.parametrize("dies", [False, True])
def test_an_end_that_django_does_not_notice_is_an_error(dies: bool) -> None:
    """What the work writes after it is committed by itself: the key is held, and no retry writes once more."""

    def ends() -> str:
        commit()
        Order.objects.create(reference="after")
        if dies:
            raise Died("boom")
        return "done"

    assert_is_held(ends, "boom" if dies else "ended its own transaction")


@pytest.mark.skipif(connection.Database.__name__ != "psycopg2", reason="about psycopg2: tox run -e psycopg2")
def test_a_raw_rollback_that_psycopg2_does_not_notice_is_an_error() -> None:
    """psycopg2 sends no other BEGIN, so each later write is committed by itself: no retry writes once more."""

    def ends() -> str:
        with connection.cursor() as cursor:
            cursor.execute("ROLLBACK")
        Order.objects.create(reference="after")
        return "done"

    assert_is_held(ends)


def writes_a_half(operation: Operation) -> Any:
    operation.write("order", half)


@pytest.mark.parametrize("on_abandoned", ["retry", "hold"])
def test_a_write_that_commits_in_the_middle_is_in_doubt(on_abandoned: Any) -> None:
    """It is not run again, also under "retry": nobody would recognise the repetition."""
    with pytest.raises(Died):
        once(writes_a_half, lease=60, on_abandoned=on_abandoned)
    for _ in range(2):
        with pytest.raises(OutcomeUnknown):
            once(writes_a_half, lease=60, on_abandoned=on_abandoned)
    assert orders() == ["before"]
    assert in_doubt().count() == 1


def test_recorded_the_write_has_its_result() -> None:
    """The next attempt goes on behind it."""
    with pytest.raises(Died):
        once(writes_a_half, lease=60)
    record_outcome(IdempotencyKey.objects.get(), "order", None)
    assert once(writes_a_half, lease=60) is None
    assert orders() == ["before"]


def test_a_write_that_only_fails_leaves_no_doubt() -> None:
    """It rolls back, "started" included."""

    def fails() -> None:
        Order.objects.create()
        raise Died

    for _ in range(2):
        with pytest.raises(Died):
            once(lambda operation: operation.write("order", fails), lease=60)
    assert (orders(), IdempotencyStep.objects.count()) == ([], 0)
