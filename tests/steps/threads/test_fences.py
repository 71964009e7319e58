"""Each step of a leased worker locks the claimed row, also where the step is one statement that commits by itself."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from django.db import connection, transaction

from django_idempotency import ClaimLost
from django_idempotency.engine.protocol.outcomes import Claimed, ClaimOutcome, Conflicted
from django_idempotency.engine.stores import Store, store_for
from django_idempotency.engine.stores.journal import AlreadyFinished
from django_idempotency.exceptions import NotResolvable
from django_idempotency.maintenance.resolution import release_for_retry
from django_idempotency.models import IdempotencyKey, IdempotencyStep
from tests.claims import SNAPSHOT, a_claim, claim_and_commit
from tests.contracts.test_leased import elsewhere
from tests.leases import lapse
from tests.servers import eventually
from tests.sql import ask

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.only_on("postgresql", "mysql")]
Step = Callable[[Store, Claimed], Any]
CLAIM = a_claim(lease=60.0, policy="retry")


def write(store: Store, claimed: Claimed, **how: bool) -> None:
    with transaction.atomic():
        store.journal.start_write(claimed, "order")
        store.journal.finish_write(claimed, "order", "{}", **how)


STEPS: dict[str, Step] = {
    "start": lambda store, claimed: store.journal.start_call(claimed, "mail", keyed=False),
    "restart": lambda store, claimed: store.journal.start_call(claimed, "charge", keyed=False, again=True),
    "finish": lambda store, claimed: store.journal.finish_call(claimed, "charge", "{}"),
    "fetch": lambda store, claimed: store.journal.keep_fetched(claimed, "rate", "1"),
    "write": write,
    "renew": lambda store, claimed: store.journal.renew(claimed, 60.0),
    "fail": lambda store, claimed: store.journal.fail(claimed, CLAIM, "it broke"),
}


def alone(change: Callable[..., Any]) -> Step:
    """The change is all that its transaction does, as in leased work. PostgreSQL gets it in one message."""

    def changed(store: Store, claimed: Claimed) -> None:
        with transaction.atomic():
            change(store, claimed, last=True)

    return changed


STEPS |= {
    "start alone": alone(lambda store, *of, **how: store.journal.start_call(*of, "mail", keyed=False, **how)),
    "write alone": partial(write, last=True),
    "finish alone": alone(lambda store, *of, **how: store.journal.finish_call(*of, "charge", "{}", **how)),
    "complete": alone(lambda store, *of, **how: store.complete_for(*of, SNAPSHOT, 60)),
}

# A read is only kept: beside a takeover on another node, its result does no harm.
CHANGES = {"fence": lambda store, claimed: store.journal.fence(claimed), **{n: STEPS[n] for n in STEPS if n != "fetch"}}


@pytest.fixture
def store() -> Store:
    return store_for("default")


def claimed_by(outcome: ClaimOutcome) -> Claimed:
    assert isinstance(outcome, Claimed)
    return outcome


def a_worker(store: Store) -> Claimed:
    """A worker with a call in doubt, whose lease is over."""
    worker = claimed_by(claim_and_commit(store, CLAIM))
    store.journal.start_call(worker, "charge", keyed=False)
    lapse()
    return worker


def waits() -> bool:
    """Whether a transaction waits for the lock of another."""
    database = "mariadb" if getattr(connection, "mysql_is_mariadb", False) else connection.vendor
    sql = {
        "postgresql": "SELECT count(*) FROM pg_locks WHERE NOT granted",
        # Not innodb_trx, which shows the waiting statement: MySQL raises an error when the statement has binary bytes.
        "mysql": "SELECT count(*) FROM performance_schema.data_lock_waits",
        # The statement rests first: InnoDB refreshes that table only after 0.1 seconds without a look.
        "mariadb": (
            "SELECT (SELECT count(*) FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT') "
            "FROM (SELECT SLEEP(0.2)) AS rest"
        ),
    }[database]
    return bool(ask(sql)[0])


def everything() -> list[list[Any]]:
    return [list(model._base_manager.order_by("pk").values()) for model in (IdempotencyKey, IdempotencyStep)]


@pytest.mark.parametrize("name", STEPS)
def test_a_step_that_meets_a_takeover_waits_for_it_and_is_lost(store: Store, name: str) -> None:
    """The statement was sent before the takeover was committed. What it does then is decided by the committed row."""
    worker = a_worker(store)
    with elsewhere() as start:
        with transaction.atomic():
            assert claimed_by(store.claim(CLAIM)).attempt == 2
            zombie = start(STEPS[name], store, worker)
            eventually("the zombie to wait for the row", waits)
            after = everything()
        assert isinstance(zombie.exception(30), ClaimLost)
    assert everything() == after


def test_a_decision_that_meets_a_takeover_waits_for_it_and_is_refused(store: Store) -> None:
    """The operator saw an abandoned key. Now a new worker has it."""
    a_worker(store)
    seen = IdempotencyKey.objects.get()
    with elsewhere() as start:
        with transaction.atomic():
            assert claimed_by(store.claim(CLAIM)).attempt == 2
            decision = start(lambda: release_for_retry(seen))
            eventually("the decision to wait for the row", waits)
            after = everything()
        assert isinstance(decision.exception(30), NotResolvable)
    assert everything() == after


def test_an_error_that_meets_a_takeover_is_not_noted(store: Store) -> None:
    """The call may be running again."""
    worker = a_worker(store)
    with elsewhere() as start:
        with transaction.atomic():
            claimed_by(store.claim(CLAIM))
            zombie = start(store.journal.note_error, worker, "charge", "it broke")
            eventually("the zombie to wait for the row", waits)
        zombie.result(30)
    assert IdempotencyStep.objects.get().error is None


@pytest.mark.only_on("mysql")
@pytest.mark.parametrize("name", CHANGES)
def test_a_step_changes_the_row_that_it_locks(store: Store, name: str) -> None:
    """A Galera node compares with the other nodes what a transaction has changed, and never what it has locked."""
    worker = a_worker(store)
    before = IdempotencyKey.objects.values().get()
    CHANGES[name](store, worker)
    assert IdempotencyKey.objects.values().get() != before


@pytest.mark.parametrize("name", STEPS)
def test_a_takeover_does_not_overtake_a_step(store: Store, name: str) -> None:
    """The step is not committed yet. The rival is told at once that the key is in work, and changes nothing."""
    worker = a_worker(store)
    with elsewhere() as start, transaction.atomic():
        STEPS[name](store, worker)
        after = everything()
        assert start(claim_and_commit, store, CLAIM).result(30) == Conflicted()
    assert everything() == after


def test_the_end_of_a_call_that_is_sent_twice_at_once(store: Store) -> None:
    """The first statement is still at work when the second comes. The second waits, and changes nothing."""
    worker = a_worker(store)
    with elsewhere() as start:
        with transaction.atomic():
            store.journal.finish_call(worker, "charge", '{"value": 1}')
            second = start(store.journal.finish_call, worker, "charge", '{"value": 2}')
            eventually("the second to wait for the first", waits)
        with pytest.raises(AlreadyFinished):
            second.result(30)
    assert IdempotencyStep.objects.get().result == '{"value": 1}'
    row = IdempotencyKey.objects.get()
    assert (row.unknown, row.effects) == (0, 1)


def test_a_call_that_has_a_result_is_not_started_again(store: Store) -> None:
    """The caller took it for a call in doubt. It is not made, and its result stays."""
    worker = a_worker(store)
    store.journal.finish_call(worker, "charge", '{"value": 1}')
    after = everything()
    with pytest.raises(ClaimLost):
        store.journal.start_call(worker, "charge", keyed=False, again=True)
    assert everything()[1] == after[1]
