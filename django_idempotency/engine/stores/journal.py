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

# Note [Lost answers]
Sometimes a connection breaks while a worker waits for the answer to a COMMIT. Then the worker does not know whether the
database has committed the transaction. An answer can be lost at several places, and the package has a rule for each of
these places:

* If the connection breaks at the COMMIT of a claim, the error propagates, and the work does not run. If the claim was
  committed, the key is locked until its lease ends.
* The worker commits before it makes a call. If the connection breaks during this COMMIT, the error propagates, and the
  worker does not make the call. If the start of the call was committed, the call is in doubt.
* If the connection breaks at the COMMIT after a call, the worker stores the result again on a new connection. If the
  result was already committed, the second try changes nothing.
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
from typing import TYPE_CHECKING, Any

from django.db import connections, transaction

from ...exceptions import LeaseLost, TransactionBroken
from ...models import IdempotencyKey, IdempotencyStep
from .sealing import seal, unseal
from .states import UNFINISHED, Clock

if TYPE_CHECKING:
    from django.db.models import QuerySet

    from ..protocol.outcomes import Claimed, ClaimRequest, Resource

Kind, Status = IdempotencyStep.Kind, IdempotencyKey.Status


class Journal:
    """A `Journal` object works with one database alias. If the caller has opened a transaction, the methods of the
    journal use this transaction.
    """

    def __init__(self, alias: str) -> None:
        self.alias = alias

    # --- the claimed row

    def fence(self, claimed: Claimed) -> None:
        """Lock or change the claimed row, so that a takeover can commit only after this transaction. Raises
        `LeaseLost`.

        On PostgreSQL, this method locks the row. On the other databases, this method changes the row, to get the lock.
        In a Galera cluster, a lock would not be enough, because a node tells the other nodes only about changed rows.
        SQLite has no row locks. See Note [Fencing].
        """
        if not connections[self.alias].features.has_select_for_no_key_update:
            self._change(claimed)
        elif not locked(self._own(claimed)).values_list("pk"):
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
        kept = {"expires_at": Clock(plus=wanted.ttl), "last_error": seal(claimed, "last_error", error)}
        self._change(claimed, status=Status.FAILED, locked_until=None, **kept)

    # --- steps

    def steps(self, claimed: Claimed) -> dict[str, tuple[bool, str | None]]:
        """Return a dict with the key's stored steps. Raises `LeaseLost`.

        The dict maps the name of each step to a pair of values. The first value of the pair tells whether the step is
        finished. The second value of the pair is the result of the step.
        """
        rows = list(self._own(claimed).values_list("steps__name", "steps__finished_at", "steps__result"))
        if not rows:
            raise lease_lost()
        # This method decrypts all results before a step runs. So if one result cannot be decrypted, no step runs.
        return {
            name: (finished is not None, unseal(claimed, "result", kept, name))
            for name, finished, kept in rows
            if name is not None  # for a key without steps, the query returns one row with the name None
        }

    def kinds(self, claimed: Claimed) -> dict[str, str]:
        """Return a dict with the name and the kind of each step of the key."""
        return dict(self._steps(claimed.id).values_list("name", "kind"))

    def start_call(self, claimed: Claimed, name: str, *, again: bool, keyed: bool = False) -> None:
        """Record the start of a call, before the worker makes the call. Raises `LeaseLost`.

        If the worker repeats a call, the step keeps the time and the error of the old call. So a person can look for
        the old call in the external service.

        Args:
            again: True if an earlier attempt has already started this call.
            keyed: True if the work has read the derived key of this step before the call. Then the call perhaps sends
                the derived key.
        """
        with self._atomic():
            self._change(claimed)
            if not again:
                self._add(claimed, name, Kind.CALL, keyed=keyed)
            elif (step := self._unfinished(claimed, name)).exists():
                step.update(attempt=claimed.attempt, keyed=keyed)
            else:
                raise lease_lost()

    def finish_call(self, claimed: Claimed, name: str, result: str | None) -> None:
        """Record the result of a call. Raises `LeaseLost`.

        If the argument `result` is None, the call has ended, but its return value is lost. If this method raises an
        error, the caller may try again. See Note [Lost answers].
        """
        with self._atomic():
            self.fence(claimed)
            self._finish(claimed, name, result)

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
        """Call the method `fence`, and then record the start of a local write. Raises `LeaseLost`.

        This method must be the first one in the transaction of the local write. See Note [Writes in doubt].
        """
        self.fence(claimed)
        self._add(claimed, name, Kind.WRITE)

    def finish_write(self, claimed: Claimed, name: str, result: str) -> None:
        """Record the result of a local write. In the transaction of the local write, no statement may follow after this
        method.

        Raises:
            LeaseLost: another worker has taken the key over.
            TransactionBroken: the write was started in an earlier transaction than the current one.
        """
        self.fence(claimed)
        if not self._finish(claimed, name, result):
            raise TransactionBroken(
                f"The database has rolled back the transaction of operation.write({name!r}), most often because of a "
                "deadlock, and its function has caught that error and returned. Nothing of the write was committed. "
                "Let the error propagate: the next retry runs the write again."
            )

    # --- for the claim

    def doubts(self, row_id: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Find the steps that have no result, and return their names as two tuples. The first tuple contains the calls,
        and the second tuple contains the writes.

        The caller must lock the key before it calls this method. This method locks the steps. So it reads all steps
        that are committed now, and not an older snapshot.
        """
        rows = list(locked(self._steps(row_id).filter(UNFINISHED)).values_list("name", "kind"))
        calls = tuple(name for name, kind in rows if kind == Kind.CALL)
        return calls, tuple(name for name, kind in rows if kind != Kind.CALL)

    def has_steps(self, row_id: int) -> bool:
        """Return whether the key has steps. Like the method `doubts`, this method reads all steps that are committed
        now.
        """
        return bool(locked(self._steps(row_id)).values_list("pk")[:1])

    def delete_steps(self, row_id: int) -> None:
        """Delete all steps of a key."""
        self._steps(row_id).delete()

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

    def _steps(self, row_id: int) -> QuerySet[IdempotencyStep]:
        return IdempotencyStep.objects.using(self.alias).filter(key=row_id)

    def _unfinished(self, claimed: Claimed, name: str) -> QuerySet[IdempotencyStep]:
        return self._steps(claimed.id).filter(UNFINISHED, name=name)

    def _finish(self, claimed: Claimed, name: str, result: str | None) -> int:
        kept = seal(claimed, "result", result, name)
        return self._unfinished(claimed, name).update(result=kept, finished_at=Clock())

    def _add(self, claimed: Claimed, name: str, kind: str, **values: Any) -> None:
        step = IdempotencyStep(
            key_id=claimed.id, name=name, kind=kind, attempt=claimed.attempt, started_at=Clock(), **values
        )
        # This code does not call save(), because save() sends signals. This code checks the claimed row, and then
        # inserts the step. Between these two actions, a receiver of the Django signals could run code of the project.
        IdempotencyStep.objects.using(self.alias).bulk_create([step])

    def _atomic(self) -> Any:
        """Run several statements in one transaction. If the caller has opened a transaction, use the caller's
        transaction.
        """
        return transaction.atomic(using=self.alias, savepoint=False)


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
