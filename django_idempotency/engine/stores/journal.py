"""The journal of leased mode stores the lease of a committed claim, and the steps of the work.

Each claimed row has an attempt number. A worker can change the lease and the steps only while the row has the attempt
number of this worker. This condition is called the fence. If a newer attempt has taken the key over, the journal
changes nothing.

# Note [Fencing]
Sometimes a worker stops for a long time, and goes on after its lease is over. So each transaction of a worker first
locks or changes the claimed row. The lock or the change succeeds only if the row is still in progress and still has the
attempt number of this worker. A takeover or an operator's decision locks the same row, and changes the attempt or the
status of the row. So the old worker can commit only before the takeover or the decision. After the takeover or the
decision, the old worker does not find its row. Then `LeaseLost` rolls back the transaction of the old worker. A check
without a lock would not be enough, because the old worker and the new worker could commit at the same time.

The condition for the claimed row also contains the two hashes of the key's identity. Some projects have a schema or a
database for each tenant. In such a project, the work can switch its connection to another tenant with `SET search_path`
or `USE`. In the tables of the other tenant, another key could have the same id and the same attempt number. The
database also needs the hashes to find the partition of the row.

On every database, the start of a call writes a new version of the claimed row. Under REPEATABLE READ, a takeover can
have an older snapshot in which the started call is missing. The new version of the row makes such a takeover fail. A
lock alone would not stop such a takeover, because a lock writes no new row version.

# Note [Lost answers]
Sometimes a connection breaks while a worker waits for the answer to a COMMIT. Then the worker does not know whether the
database has committed the transaction. So the package has a rule for each lost answer:

* If the answer to a claim is lost, the error propagates, and no work is done. If the claim was committed, the key is
  locked until its lease is over.
* If the answer to the start of a call is lost, the error propagates, and the call is not made. If the start was
  committed, the call is in doubt.
* If the answer to the end of a call is lost, the worker records the end of the call again on a new connection. If the
  first record was committed, the second record changes nothing, because the step is finished already.
* If the answer to a local write is lost, the error propagates, and the key is marked as failed. The next attempt reads
  from the table whether the write was committed.
* If the answer to a completion is lost, the worker tries to mark the key as failed. A completed key cannot be marked as
  failed, so the client gets the stored response. If the key is marked as failed, the next attempt finds the finished
  steps.

# Note [Writes in doubt]
The transaction of a local write first records the start of the write. At its end, the transaction records the result of
the write. So other requests never see a started write whose result is missing. But a write with a raw COMMIT, or with
DDL on MariaDB, ends its own transaction before the result is recorded. If such a write then fails or is killed, the
step of the write has no result. The package cannot find out what the write has committed, so a person must decide about
the key.
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
    """This class is the journal of one database alias. If the caller has opened a transaction, each method uses this
    transaction.
    """

    def __init__(self, alias: str) -> None:
        self.alias = alias

    # --- methods that change the claimed row, see Note [Fencing]

    def fence(self, claimed: Claimed) -> None:
        """Lock or change the claimed row, so that a takeover can commit only after this transaction. Raises
        `LeaseLost`.

        On PostgreSQL, this method locks the row. On the other databases, this method changes the row instead. In a
        Galera cluster, a lock would not be enough. A node tells the other nodes about changed rows, but not about
        locked rows. SQLite has no row locks.
        """
        if not connections[self.alias].features.has_select_for_no_key_update:
            self._change(claimed)
        elif not locked(self._own(claimed)).values_list("pk"):
            raise lease_lost()

    def renew(self, claimed: Claimed, lease: float) -> None:
        """Set the end of the key's lease to `lease` seconds from now. Raises `LeaseLost`."""
        self._change(claimed, locked_until=Clock(plus=lease))

    def refer(self, claimed: Claimed, resource: Resource) -> None:
        """Store the type and the id of the object that the operation is about. Raises `LeaseLost`."""
        self._change(claimed, resource_type=resource[0], resource_id=resource[1])

    def fail(self, claimed: Claimed, wanted: ClaimRequest, error: str) -> None:
        """Mark the key as failed, so that the next retry can run at once. Raises `LeaseLost`.

        Some databases refuse some letters that are not in ASCII. So in the text `error`, each letter that is not in
        ASCII is stored as an escape. If a database refused the error text, the key would stay locked until its lease is
        over.
        """
        error = error.encode("ascii", "backslashreplace").decode()
        kept = {"expires_at": Clock(plus=wanted.ttl), "last_error": seal(claimed, "last_error", error)}
        self._change(claimed, status=Status.FAILED, locked_until=None, **kept)

    # --- steps

    def steps(self, claimed: Claimed) -> dict[str, tuple[bool, str | None]]:
        """Return a dict of the stored steps of the key. Raises `LeaseLost`.

        For the name of each step, the dict has a pair of values. The first value of the pair tells whether the step is
        finished. The second value is the result of the step.
        """
        rows = list(self._own(claimed).values_list("steps__name", "steps__finished_at", "steps__result"))
        if not rows:
            raise lease_lost()
        # All results are decrypted before the first step runs. If one result cannot be decrypted, no step runs.
        return {
            name: (finished is not None, unseal(claimed, "result", kept, name))
            for name, finished, kept in rows
            if name is not None  # if the key has no steps, the query returns one row whose name is None
        }

    def kinds(self, claimed: Claimed) -> dict[str, str]:
        """Return a dict with the name and the kind of each step of the key."""
        return dict(self._steps(claimed.id).values_list("name", "kind"))

    def start_call(self, claimed: Claimed, name: str, *, again: bool, keyed: bool = False) -> None:
        """Record that the worker will make a call now. Raises `LeaseLost`.

        `again` is True if an earlier attempt has already started this call.
        `keyed` is True if the work has read the derived key of this step before the call. Then the call perhaps sends
        the derived key.

        If the worker makes a call again, the record keeps the time and the error of the first call. With this
        information, a person can search for the first call in the other system.
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

        If `result` is None, the call has ended, but its return value is lost. If `finish_call` raises an error, the
        caller can call `finish_call` again. See Note [Lost answers].
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
        """Store the error of a call in doubt. If this attempt has lost its claim, store nothing."""
        with suppress(LeaseLost), self._atomic():
            self.fence(claimed)
            self._unfinished(claimed, name).update(error=seal(claimed, "error", error, name))

    def start_write(self, claimed: Claimed, name: str) -> None:
        """Lock or change the claimed row (see `fence`), and record that a local write will run now. Raises `LeaseLost`.

        `start_write` must be called first in the transaction of the local write. See Note [Writes in doubt].
        """
        self.fence(claimed)
        self._add(claimed, name, Kind.WRITE)

    def finish_write(self, claimed: Claimed, name: str, result: str) -> None:
        """Record the result of a local write. `finish_write` must be called last in the transaction of the local write.

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
        """Return the names of the steps that have no result. The first tuple has the calls, the second tuple has the
        writes.

        The caller must lock the key before it calls this method. The query locks the steps. So the query reads the
        steps that are committed now, and not an older snapshot.
        """
        rows = list(locked(self._steps(row_id).filter(UNFINISHED)).values_list("name", "kind"))
        calls = tuple(name for name, kind in rows if kind == Kind.CALL)
        return calls, tuple(name for name, kind in rows if kind != Kind.CALL)

    def has_steps(self, row_id: int) -> bool:
        """Return whether the key has steps. Like `doubts`, this method reads the steps that are committed now."""
        return bool(locked(self._steps(row_id)).values_list("pk")[:1])

    def delete_steps(self, row_id: int) -> None:
        """Delete all steps of a key."""
        self._steps(row_id).delete()

    # ---

    def _own(self, claimed: Claimed) -> QuerySet[IdempotencyKey]:
        """Return a query that finds the claimed row only if the row still belongs to this attempt."""
        rows = IdempotencyKey.objects.using(self.alias).filter(key_hash=claimed.key_hash, scope_hash=claimed.scope_hash)
        return rows.filter(pk=claimed.id, attempt=claimed.attempt, status=Status.IN_PROGRESS)

    def _change(self, claimed: Claimed, **changes: Any) -> None:
        # Without the flag FOUND_ROWS, MySQL counts only rows whose values have changed. So each UPDATE here changes
        # `updated_at`.
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
        # The step is created without save(), because save() sends signals. A signal handler of the project could run
        # after the check of the claimed row and before the insert of the step.
        IdempotencyStep.objects.using(self.alias).bulk_create([step])

    def _atomic(self) -> Any:
        """Run several statements in one transaction: the open transaction of the caller, or a new transaction."""
        return transaction.atomic(using=self.alias, savepoint=False)


def locked(rows: QuerySet[Any], *, skip: bool = False) -> QuerySet[Any]:
    """Lock the rows of a query until the transaction ends, if the database has row locks.

    Duplicates can still read the locked rows. If `skip` is True and the database has SKIP LOCKED, the query skips all
    rows that another transaction has locked.
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
