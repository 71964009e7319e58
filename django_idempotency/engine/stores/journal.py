"""The journal of leased mode stores two things: the lease of a committed claim, and the steps of the work.

Each claimed row has an attempt number. A worker may change the lease and the steps only if the row has the worker's own
attempt number. This rule is called the fence. If another worker has taken over the key, the journal refuses all changes
of the old worker.

# Note [Fencing]
A worker can stop for a long time, and continue after the end of its lease. So each transaction of a worker first locks
or changes the claimed row. The transaction continues only if the row is in progress and has the worker's own attempt
number. A takeover also locks the claimed row, and then changes the attempt number. A person's decision also locks the
claimed row, and then changes the status. So the old worker cannot commit after the takeover or the decision. If the old
worker tries to commit, the error `LeaseLost` rolls back its transaction. Without the lock, the old worker and the new
worker could commit at the same time.

Each query for the claimed row also compares the two hashes of the key. Some projects have one schema or one database
for each tenant. In these projects, the code of a view can switch the database connection to another tenant with `SET
search_path` or `USE`. In the other tenant's table, a different key could have the same id and the same attempt number.
If the key table has partitions, the database also needs the hashes to find the row's partition.

On every database, the journal updates the claimed row before a worker makes a call. Under REPEATABLE READ, a takeover
can have a snapshot that is older than this update. An old snapshot does not contain the call. This update makes a
takeover fail if the takeover's transaction has an old database snapshot. A lock without an update would not stop the
takeover.

# Note [One truth about a key]
What a key is worth is written on its row: `unknown` counts the calls and writes that were started and have no result,
`effects` the calls that have finished, lost values included. Each statement that starts or finishes a step has the
matching change of the row in its transaction, behind the fence, so the two cannot differ:

    start of a call or write      unknown + 1     (a repeated call: no change)
    finish of a call              unknown - 1, effects + 1
    finish of a write             unknown - 1
    a person records a doubt      as the finish of that step
    release                       unknown = 0     (the steps without a result are deleted)
    takeover of an expired row    both 0          (its steps are deleted)

`attention_at` is set where an attempt ends or is decided with either count above 0, and cleared where the key is
resumed or completed. Everything else asks the row: a claim, a cleanup, the admin, the metrics. Only the names and kinds
of steps are read from their table.

# Note [Lost answers]
Sometimes a connection breaks while a worker waits for the answer to a COMMIT. Then the worker does not know whether the
database has committed the transaction. An answer can be lost at several places, and the package has a rule for each of
these places:

* If the connection breaks at the COMMIT of a claim, the error propagates, and the work does not run. If the claim was
  committed, the key is locked until its lease ends.
* The worker commits before it makes a call. If the connection breaks during this COMMIT, the error propagates, and the
  worker does not make the call. If the start of the call was committed, the call is in doubt.
* If the connection breaks at the COMMIT after a call, the worker stores the result again on a new connection. If the
  result was already committed, the second try finds no step without a result, and is rolled back.
* If the connection breaks at the COMMIT of a local write, the error propagates, and the package marks the key as
  failed. The next attempt finds a step for the write only if the write was committed.
* If the connection breaks at the COMMIT that completes the key, the worker tries to mark the key as failed. A completed
  key cannot be marked as failed, so the client gets the stored response. If the key is marked as failed, the next
  attempt does not repeat the finished steps.

# Note [Writes in doubt]
The transaction of a local write begins with a record of the start, and ends with a record of the result. So other
transactions see both records, or no record. But the project's function can end the transaction too early, for example
with a raw COMMIT, or with DDL on MariaDB. If the function then fails or is killed, the write has no result. The package
cannot find out what the function has committed, so a person must decide about the key.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from django.db import connections, transaction
from django.db.models import BooleanField, ExpressionWrapper, F, FilteredRelation, Q

from ...exceptions import LeaseLost, TransactionBroken
from ...models import IdempotencyKey, IdempotencyStep
from ..protocol.stored_key import Doubt
from .sealing import seal, unseal
from .states import SETTLED, UNFINISHED, Clock

if TYPE_CHECKING:
    from django.db.models import QuerySet

    from ..protocol.outcomes import Claimed, ClaimRequest, Resource

Kind, Status = IdempotencyStep.Kind, IdempotencyKey.Status


class KeptStep(NamedTuple):
    """A stored step, as an attempt finds it. A finished call without a result has lost its value."""

    kind: str
    finished: bool
    result: str | None


class NotRepeatable(Exception):
    """A call in doubt must not be made again: one of its starts carried no derived key, or the first is too old."""


class AlreadyFinished(Exception):
    """The step that should be finished is finished, or was never started."""


class Journal:
    """A `Journal` object works with one database alias. If the caller has opened a transaction, the methods of the
    journal use this transaction.
    """

    def __init__(self, alias: str) -> None:
        self.alias = alias

    # --- the claimed row

    def fence(self, claimed: Claimed, *, unknown: int = 0, effects: int = 0) -> None:
        """Lock or change the claimed row, so that a takeover can commit only after this transaction. Raises
        `LeaseLost`, and `AlreadyFinished` if there is no step without a result to count down.

        On PostgreSQL, a row whose counts stay the same is only locked. On the other databases it is always changed: in
        a Galera cluster a node tells the other nodes only about changed rows, and SQLite has no row locks. See Note
        [Fencing].

        Args:
            unknown, effects: what to add to the counts. See Note [One truth about a key].
        """
        own = self._own(claimed)
        if unknown or effects or not connections[self.alias].features.has_select_for_no_key_update:
            counts = {"unknown": unknown, "effects": effects}
            changes = {name: F(name) + change for name, change in counts.items() if change}
            if own.filter(unknown__gte=max(0, -unknown)).update(updated_at=Clock(), **changes) == 1:
                return
            if unknown < 0 and own.exists():
                raise AlreadyFinished
            raise lease_lost()
        if not locked(own).values_list("pk"):
            raise lease_lost()

    def renew(self, claimed: Claimed, lease: float) -> None:
        """Set the end of the key's lease to `lease` seconds from now. Raises `LeaseLost`."""
        self._change(claimed, locked_until=Clock(plus=lease))

    def refer(self, claimed: Claimed, resource: Resource) -> None:
        """Store the type and the id of the operation's resource. Raises `LeaseLost`."""
        self._change(claimed, resource_type=resource[0], resource_id=resource[1])

    def fail(self, claimed: Claimed, wanted: ClaimRequest, error: str) -> None:
        """Mark the key as failed, so that the next retry can run at once. Raises `LeaseLost`.

        The error text is converted to ASCII, because a database can refuse letters that are not in ASCII. If a database
        refused the error text, the key would be locked until its lease ends.
        """
        error = error.encode("ascii", "backslashreplace").decode()
        ended: dict[str, Any] = {
            "status": Status.FAILED,
            "locked_until": None,
            "expires_at": Clock(plus=wanted.ttl),
            "last_error": seal(claimed, "last_error", error),
            "updated_at": Clock(),
        }
        if not fail(self._own(claimed), **ended):
            raise lease_lost()

    # --- steps

    def steps(self, claimed: Claimed) -> dict[str, KeptStep]:
        """Return the key's stored steps by name. Raises `LeaseLost`."""
        same = Q(steps__key_hash=claimed.key_hash, steps__scope_hash=claimed.scope_hash)
        own = self._own(claimed).annotate(own=FilteredRelation("steps", condition=same))
        rows = list(own.values_list("own__name", "own__kind", "own__finished_at", "own__result"))
        if not rows:
            raise lease_lost()
        # This method decrypts all results before a step runs. So if one result cannot be decrypted, no step runs.
        return {
            name: KeptStep(kind, finished is not None, unseal(claimed, "result", kept, name))
            for name, kind, finished, kept in rows
            if name is not None  # for a key without steps, the query returns one row with the name None
        }

    def start_call(
        self, claimed: Claimed, name: str, *, keyed: bool | None, again: bool = False, keys_last: float | None = None
    ) -> None:
        """Record the start of a call, before the worker makes the call. Raises `LeaseLost`.

        If the worker repeats a call, the step keeps the time and the error of the old call. So a person can look for
        the old call in the external service.

        Args:
            keyed: whether this start follows a `derive_key` for the step. None leaves the step as it is, because
                `reconcile` looks a call up and does not make it.
            again: True if an earlier attempt has already started this call.
            keys_last: raise `NotRepeatable` unless all earlier starts were keyed and the first is younger than this
                many seconds. None repeats in any case.
        """
        with self._atomic():
            self.fence(claimed, unknown=0 if again else 1)
            if not again:
                self._add(claimed, name, Kind.CALL, keyed=bool(keyed))
                return
            step = self._unfinished(claimed, name)
            if not step.exists():
                raise lease_lost()
            if keys_last is not None and not (keyed and step.filter(recognizable(keys_last)).exists()):
                raise NotRepeatable
            step.update(attempt=claimed.attempt, **{"keyed": False} if keyed is False else {})

    def finish_call(self, claimed: Claimed, name: str, result: str | None) -> None:
        """Record the result of a call. Raises `LeaseLost`.

        If the argument `result` is None, the call has ended, but its return value is lost. A caller that tries again
        after a database error takes `AlreadyFinished` for success. See Note [Lost answers].
        """
        with self._atomic():
            self.fence(claimed, unknown=-1, effects=1)
            if not self._finish(claimed, name, result):
                raise AlreadyFinished

    def enter_lost(self, claimed: Claimed, name: str, result: str) -> None:
        """Store the value of a finished call whose value was lost. Raises `LeaseLost`."""
        with self._atomic():
            self.fence(claimed)
            steps_of(self.alias, claimed).filter(LOST, name=name).update(result=seal(claimed, "result", result, name))

    def keep_fetched(self, claimed: Claimed, name: str, result: str) -> None:
        """Record an external read (a step of kind `fetch`) and its result. Raises `LeaseLost`."""
        with self._atomic():
            self.fence(claimed)
            kept = {"finished_at": Clock(), "result": seal(claimed, "result", result, name)}
            self._add(claimed, name, Kind.FETCH, **kept)

    def note_error(self, claimed: Claimed, name: str, error: str) -> None:
        """If the outcome of a call is unknown, store the error of the call. If this attempt has lost its claim, store
        nothing.
        """
        with suppress(LeaseLost), self._atomic():
            self.fence(claimed)
            self._unfinished(claimed, name).update(error=seal(claimed, "error", error, name))

    def start_write(self, claimed: Claimed, name: str) -> None:
        """Record the start of a local write. Raises `LeaseLost`.

        This must come first in the transaction of the write. See Note [Writes in doubt].
        """
        self.fence(claimed, unknown=1)
        self._add(claimed, name, Kind.WRITE)

    def finish_write(self, claimed: Claimed, name: str, result: str) -> None:
        """Record the result of a local write. No statement may follow in its transaction.

        Raises:
            LeaseLost: another worker has taken the key over.
            TransactionBroken: the write was started in an earlier transaction than the current one.
        """
        # The step first: if the start is gone with an earlier transaction, there is no count to take back.
        if not self._finish(claimed, name, result):
            self.fence(claimed)
            raise TransactionBroken(
                f"The database has rolled back the transaction of operation.write({name!r}), most often because of a "
                "deadlock, and its function has caught that error and returned. Nothing of the write was committed. "
                "Let the error propagate: the next retry runs the write again."
            )
        self.fence(claimed, unknown=-1)

    # --- for the claim

    def doubts(self, row: Claimed, keys_last: float) -> list[Doubt]:
        """Return the steps of the key that have no result.

        The caller must lock the key first. The steps are locked, too, so that this reads what is committed now, and not
        an older snapshot.
        """
        again = ExpressionWrapper(recognizable(keys_last), BooleanField())
        rows = locked(steps_of(self.alias, row).filter(UNFINISHED)).order_by("pk").values_list("name", "kind", again)
        return [Doubt(name, kind == Kind.CALL, bool(keyed)) for name, kind, keyed in rows]

    def has_steps(self, row: Claimed) -> bool:
        """Return whether the key has steps. Like `doubts`, this reads what is committed now."""
        return bool(locked(steps_of(self.alias, row)).values_list("pk")[:1])

    # ---

    def _own(self, claimed: Claimed) -> QuerySet[IdempotencyKey]:
        """Return a query for the claimed row. If this attempt has lost the claim, the query finds no row."""
        rows = IdempotencyKey.objects.using(self.alias).filter(key_hash=claimed.key_hash, scope_hash=claimed.scope_hash)
        return rows.filter(pk=claimed.id, attempt=claimed.attempt, status=Status.IN_PROGRESS)

    def _change(self, claimed: Claimed, **changes: Any) -> None:
        # Without the flag FOUND_ROWS, MySQL counts only rows whose values have changed. So this UPDATE always changes
        # the column `updated_at`.
        if self._own(claimed).update(updated_at=Clock(), **changes) != 1:
            raise lease_lost()

    def _unfinished(self, claimed: Claimed, name: str) -> QuerySet[IdempotencyStep]:
        return steps_of(self.alias, claimed).filter(UNFINISHED, name=name)

    def _finish(self, claimed: Claimed, name: str, result: str | None) -> int:
        kept = seal(claimed, "result", result, name)
        return self._unfinished(claimed, name).update(result=kept, finished_at=Clock())

    def _add(self, claimed: Claimed, name: str, kind: str, **values: Any) -> None:
        step = IdempotencyStep(
            key_id=claimed.id,
            key_hash=claimed.key_hash,
            scope_hash=claimed.scope_hash,
            name=name,
            kind=kind,
            attempt=claimed.attempt,
            started_at=Clock(),
            **values,
        )
        # This code does not call save(), because save() sends signals. This code checks the claimed row, and then
        # inserts the step. Between these two actions, a receiver of the Django signals could run code of the project.
        IdempotencyStep.objects.using(self.alias).bulk_create([step])

    def _atomic(self) -> Any:
        """Run several statements in one transaction. If the caller has opened a transaction, use the caller's
        transaction.
        """
        return transaction.atomic(using=self.alias, savepoint=False)


LOST = Q(kind=Kind.CALL, finished_at__isnull=False, result=None)
"""A call that has finished, and whose value could not be stored."""


def recognizable(keys_last: float) -> Q:
    """The condition for a call that can be made again under "retry-keyed": the other side still knows its key."""
    return Q(keyed=True, started_at__gt=Clock(plus=-keys_last))


def steps_of(alias: str, row: Claimed | IdempotencyKey) -> QuerySet[IdempotencyStep]:
    """The steps of one key, by its id and its hashes: two partitions, or two tenants, can use one id."""
    steps = IdempotencyStep.objects.using(alias)
    return steps.filter(key=row.id, key_hash=row.key_hash, scope_hash=row.scope_hash)


def fail(rows: QuerySet[IdempotencyKey], **changes: Any) -> int:
    """Mark locked or fenced rows as failed, and return how many. Those with an effect or a doubt need attention.

    Two statements, because Citus allows no clock inside CASE.
    """
    settled = rows.filter(SETTLED).update(**changes, attention_at=None)
    return settled + rows.exclude(SETTLED).update(**changes, attention_at=Clock())


def locked(rows: QuerySet[Any], *, skip: bool = False) -> QuerySet[Any]:
    """If the database has row locks, lock the rows of a query until the transaction ends.

    A query without a lock can read the locked rows. If the argument `skip` is True, the query leaves out all rows that
    another transaction has locked. The argument `skip` works only on a database with SKIP LOCKED.
    """
    features = connections[rows.db].features
    skips = skip and features.has_select_for_update_skip_locked
    return rows.select_for_update(no_key=features.has_select_for_no_key_update, skip_locked=skips)


def lease_lost() -> LeaseLost:
    return LeaseLost(
        "The lease of this operation was over, and another worker has taken its idempotency key over, or an operator "
        "has decided its outcome. Nothing of this step was committed. If the work is slow, pass a longer lease= or "
        "call operation.renew() in between. If the work switches the schema or the database (search_path, USE), let it "
        "switch back before each step and before it returns."
    )
