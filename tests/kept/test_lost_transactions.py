"""A transaction that Django takes for open, and that is over; and one that is open behind its back."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, suppress
from datetime import timedelta
from typing import Any

import pytest
from django.db import DatabaseError, OperationalError, connection, connections, transaction
from django.db.transaction import TransactionManagementError
from django.utils import timezone

from django_idempotency import (
    ClaimLost,
    IdempotencyConfigurationError,
    Operation,
    OutcomeUnknown,
    TransactionBroken,
    run_once,
)
from django_idempotency.maintenance import (
    cleanup_idempotency_keys,
    forget_scope,
    in_doubt,
    release_for_retry,
    remember_calls,
)
from django_idempotency.models import IdempotencyKey
from django_idempotency.testing import create_key
from tests.heard import heard
from tests.leases import Broken
from tests.shopapp.models import Ledger, Order
from tests.tap import tapped

pytestmark = pytest.mark.django_db(transaction=True)


def once(work: Any, **options: Any) -> Any:
    return run_once(work, scope="s", key="k", operation="o", **options).value


def lose() -> None:
    """From here on, the database commits each statement by itself, and nothing of before is left."""
    if connection.vendor == "sqlite":
        with pytest.raises(DatabaseError), connection.cursor() as cursor:
            cursor.execute("INSERT OR ROLLBACK INTO shopapp_ledger (entry) VALUES ('taken')")
    else:
        connection.connection.rollback()
        switch_to_autocommit()


def keep() -> None:
    """The same, and all of before is committed."""
    connection.connection.commit()
    switch_to_autocommit()


def switch_to_autocommit() -> None:
    raw = connection.connection
    if connection.vendor == "mysql":  # as a session that the driver has made anew
        raw.autocommit(True)
    elif connection.vendor == "postgresql":
        raw.autocommit = True


@pytest.fixture(autouse=True)
def _taken() -> None:
    Ledger.objects.create(entry="taken")


def writes_after(end: Callable[[], None]) -> Callable[[], str]:
    def work() -> str:
        Order.objects.create(reference="before")
        lose()
        Order.objects.create(reference="after")
        end()
        return "done"

    return work


def fails() -> None:
    raise Broken


def orders() -> list[str]:
    return list(Order.objects.order_by("pk").values_list("reference", flat=True))


@pytest.mark.parametrize(("end", "error"), [(fails, Broken), (lambda: None, TransactionBroken)])
def test_the_key_is_held(end: Callable[[], None], error: type[Exception]) -> None:
    """What the work has written after the end is committed. So no retry writes once more."""
    with pytest.raises(error):
        once(writes_after(end))
    with pytest.raises(OutcomeUnknown):
        once(writes_after(end))
    assert orders() == ["after"]


@pytest.mark.parametrize("on_abandoned", ["retry", "hold"])
@pytest.mark.parametrize(("end", "error"), [(fails, Broken), (lambda: None, TransactionBroken)])
def test_a_step_is_in_doubt(end: Callable[[], None], error: type[Exception], on_abandoned: Any) -> None:
    """Its start was rolled back with the rest, and is written again. Its result would hide what is lost."""

    def writes(operation: Operation) -> None:
        operation.write("order", writes_after(end))

    with pytest.raises(error):
        once(writes, lease=60, on_abandoned=on_abandoned)
    with pytest.raises(OutcomeUnknown):
        once(writes, lease=60, on_abandoned=on_abandoned)
    assert (orders(), in_doubt().count()) == (["after"], 1)


def test_a_step_that_has_committed_everything_has_its_result() -> None:
    """It is stored behind the step, and the retry goes on from there."""
    fails = [Broken]

    def commits() -> str:
        Order.objects.create(reference="before")
        keep()
        Order.objects.create(reference="after")
        return "done"

    def writes(operation: Operation) -> str:
        written: str = operation.write("order", commits)
        if fails:
            raise fails.pop()
        return written

    with pytest.raises(Broken):
        once(writes, lease=60)
    assert in_doubt().count() == 0
    assert once(writes, lease=60) == "done"
    assert orders() == ["before", "after"]


@pytest.mark.parametrize("caught", [False, True])
def test_a_step_that_returns_without_its_first_writes_is_in_doubt(caught: bool) -> None:
    """Its result would promise what was lost."""

    def calls_and_writes(operation: Operation) -> None:
        operation.call("charge", lambda: 1)
        try:
            operation.write("order", writes_after(lambda: None))
        except TransactionBroken as error:
            assert operation.in_doubt == ("order",)
            raise Broken if caught else error from error

    with pytest.raises(Broken if caught else TransactionBroken):
        once(calls_and_writes, lease=60)
    with pytest.raises(OutcomeUnknown):
        once(calls_and_writes, lease=60)
    assert (orders(), in_doubt().count()) == (["after"], 1)


def is_down(*statement: Any) -> Any:
    raise OperationalError("the database is down")


def test_work_that_raises_as_the_database_goes_down_is_told_as_released() -> None:
    """Its transaction is rolled back, and nothing says that a person has to decide."""

    def breaks() -> None:
        since.enter_context(connection.execute_wrapper(is_down))
        raise Broken

    with ExitStack() as since, heard("held", "released") as told, pytest.raises(Broken):
        once(breaks)
    assert [event["event"] for event in told] == ["released"]


@pytest.mark.parametrize("step", ["call", "write"])
def test_the_error_of_a_step_is_told_also_where_the_database_is_down(step: str) -> None:
    """And not the error of looking for the step, or of noting the error."""

    def steps_in_vain(operation: Operation) -> None:
        with ExitStack() as since:

            def breaks() -> None:
                since.enter_context(connection.execute_wrapper(is_down))
                raise Broken

            getattr(operation, step)("order", breaks)

    with pytest.raises(Broken):
        once(steps_in_vain, lease=60)


def test_an_exception_as_a_savepoint_begins_dooms_the_callers_transaction(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of it is committed, neither by a block of its own inside it nor by itself."""
    wrapper: Any = connections["default"]

    def savepoint() -> None:
        type(wrapper).savepoint(wrapper)
        raise Broken

    with transaction.atomic():
        monkeypatch.setattr(wrapper, "savepoint", savepoint)
        with pytest.raises(Broken):
            once(lambda: 1)
        monkeypatch.undo()
        with pytest.raises(TransactionManagementError), transaction.atomic():
            Order.objects.create(reference="inside")
    assert orders() == []


@pytest.mark.parametrize("moment", [1, 2, 3, 4, 5], ids=["claim", "start", "result", "write", "completion"])
def test_an_exception_just_before_a_commit_leaves_no_transaction(
    moment: int, monkeypatch: pytest.MonkeyPatch, in_threads: Callable[..., Any]
) -> None:
    """Of a signal, such as a time limit that the process survives. What comes next on the connection is committed."""
    commits = []

    def struck() -> None:
        commits.append(1)
        if len(commits) == moment:
            raise Broken
        type(wrapper).commit(wrapper)

    def pays(operation: Operation) -> Any:
        operation.call("charge", str, operation.derive_key("charge"))
        return operation.write("order", lambda: Order.objects.create(reference="paid").pk)

    wrapper: Any = connections["default"]
    wrapper.ensure_connection()
    monkeypatch.setattr(wrapper, "commit", struck)
    with suppress(Broken, DatabaseError):  # Django's own attempt to end the transaction, or nothing if it is sent again
        once(pays, lease=60)
    run_once(lambda: Order.objects.create(reference="other").pk, scope="s", key="other", operation="o")
    assert in_threads(1, lambda number: Order.objects.filter(reference="other").count()) == [1]
    IdempotencyKey.objects.filter(key="k").update(locked_until=timezone.now() - timedelta(hours=1))
    once(pays, lease=60)
    assert Order.objects.filter(reference="paid").count() == 1


@pytest.mark.parametrize(
    "begin",
    [
        lambda arm: run_once(lambda o: o.fetch("rate", arm), scope="s", key="other", operation="o", lease=60),
        lambda arm: (arm(), cleanup_idempotency_keys()),
        lambda arm: (arm(), forget_scope("s")),
        lambda arm: (arm(), remember_calls("s", "o", "k", {"charge": 1})),
        lambda arm: (arm(), release_for_retry(IdempotencyKey.objects.get())),
    ],
    ids=["fetch", "cleanup", "erasure", "restore", "decision"],
)
def test_an_exception_as_a_transaction_begins_leaves_none(
    begin: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, in_threads: Callable[..., Any]
) -> None:
    """Each has one of its own, and its process may live on: a task under a time limit does."""
    create_key("k", scope="s", operation="o", in_doubt=["charge"])
    wrapper: Any = connections["default"]
    armed: list[bool] = []

    def set_autocommit(on: bool, **how: Any) -> None:
        type(wrapper).set_autocommit(wrapper, on, **how)
        if armed and not on:
            armed.clear()
            raise Broken

    monkeypatch.setattr(wrapper, "set_autocommit", set_autocommit)
    with pytest.raises(Broken):
        begin(lambda: armed.append(True))
    run_once(lambda: Order.objects.create(reference="note").pk, scope="s", key="note", operation="o")
    assert in_threads(1, lambda number: Order.objects.filter(reference="note").count()) == [1]


@pytest.mark.only_on("postgresql")
def test_the_error_of_the_work_is_told_also_where_its_transaction_cannot_be_looked_at() -> None:
    """The work has ended its transaction, and then lost the connection."""

    def ends_in_vain() -> None:
        lose()
        tap.cut()
        raise Broken

    with tapped() as tap, pytest.raises(Broken):
        once(ends_in_vain)


@pytest.mark.only_on("postgresql")
def test_a_call_whose_result_was_committed_unheard_is_not_in_doubt() -> None:
    """The second try, on a new connection, finds the result there: nothing is lost, and nothing is called again."""
    charges: list[str] = []
    messages = 0
    with tapped() as tap:

        def charge_once(key: str, lose: int | None = None) -> None:
            def charge() -> None:
                tap.take()
                if lose is not None:
                    tap.lose_answer(lose)
                charges.append(key)

            def charges_it(operation: Operation) -> None:
                nonlocal messages
                operation.call("charge", charge)
                messages = max(messages, len(tap.take()))

            for _ in range(2):
                run_once(charges_it, scope="s", key=key, operation="o", lease=60)

        charge_once("heard")
        for number in range(1, messages + 1):
            charge_once(f"unheard-{number}", lose=number)
    assert len(charges) == len(set(charges)) >= 2
    assert in_doubt().count() == 0


@pytest.mark.only_on("postgresql", "sqlite")  # MySQL and MariaDB end an open transaction at each BEGIN
@pytest.mark.parametrize("moment", ["before", "in the middle"])
def test_nothing_is_called_in_a_transaction_of_which_django_does_not_know(moment: str) -> None:
    """As a script leaves it that fails between its BEGIN and its COMMIT. All traces of a call would be lost with it."""
    charges = []

    def begin() -> None:
        with connection.cursor() as cursor:
            cursor.execute("BEGIN")

    def begins_and_calls(operation: Operation) -> None:
        begin()
        operation.call("charge", lambda: charges.append(1))

    if moment == "before":
        begin()
    with pytest.raises(IdempotencyConfigurationError, match="raw BEGIN"):
        once(begins_and_calls, lease=60, on_abandoned="hold")
    connection.close()
    assert charges == []


@pytest.mark.only_on("mysql")
def test_a_call_that_is_made_again_ends_a_raw_begin_too() -> None:
    """Else its result would be lost with the connection, and each retry would charge once more."""
    charges = []

    def charge() -> int:
        charges.append(1)
        if len(charges) == 1:
            raise Broken
        return len(charges)

    def begins_and_calls(operation: Operation) -> Any:
        with connection.cursor() as cursor:
            cursor.execute("BEGIN")
        return operation.call("charge", charge)

    with pytest.raises(Broken):
        once(begins_and_calls, lease=60, on_abandoned="retry")
    for _ in range(2):
        assert once(begins_and_calls, lease=60, on_abandoned="retry") == 2
        connection.close()


@pytest.mark.only_on("postgresql")
@pytest.mark.parametrize("warm", [0, 3])
@pytest.mark.parametrize(
    ("statement", "error", "cause"),
    [
        ("ROLLBACK", ClaimLost, "raw ROLLBACK"),
        ("SET LOCAL search_path TO pg_catalog", ClaimLost, "search_path"),
        ("SET TRANSACTION READ ONLY", TransactionBroken, "read-only"),
    ],
)
def test_what_the_work_has_done_to_its_transaction_is_named(
    statement: str, error: type[Exception], cause: str, warm: int
) -> None:
    """By text and by prepared statements. Nothing is kept, and the key is free."""

    def work() -> None:
        Order.objects.create()
        with connection.cursor() as cursor:
            cursor.execute(statement)

    for number in range(warm):
        run_once(lambda: 1, scope="s", key=str(number), operation="o")
    with pytest.raises(error, match=cause):
        once(work)
    assert (orders(), once(lambda: 1)) == ([], 1)
