"""The journal of leased mode keeps the lease of a committed claim, and the steps of the work.

Each write of the journal has a condition on the number of its attempt, the fence. The write is refused if a newer
attempt has the key.

# Note [Fencing]
Sometimes a worker sleeps for a long time and wakes up after its lease is over. So each transaction of a worker first
locks or changes the claimed row, but only if the row is still in progress and still has the attempt number of this
worker. A takeover, or an operator's decision, changes the attempt or the status under the same lock. So only two cases
are possible. In the first case, the old worker commits before the change. In the second case, the old worker finds no
row, and `LeaseLost` rolls back its transaction. A test without a lock would not be enough, because the old worker and
the new worker could commit at the same time.

The condition also contains the hashes of the identity. If each tenant has a schema or a database, the work can switch
the connection to another tenant's schema (`SET search_path`, `USE`). In the other schema, id and attempt could match
another key. The hashes also tell the database which partition has the row.

The start of a call writes a new version of the row on every database. Under REPEATABLE READ, a takeover can have an
older snapshot, which does not show the started call. The new version of the row makes that takeover fail. A lock
without a write would not make the takeover fail, because a lock leaves no new version of the row.

# Note [Lost answers]
Sometimes a connection breaks after a statement was sent and before its answer has come. Then it is possible that the
transaction was committed, and that only the answer to the COMMIT was lost. So each step must be correct in both cases,
with and without the COMMIT:

* After a lost claim, the error propagates. If the claim was committed, the key is locked until its lease is over. No
  work was done for the claim.
* After a lost start of a call, the error propagates, and nothing is called. If the start was committed, the call is in
  doubt.
* The end of a call is sent again, on a new connection. If the first message was committed, the second message changes
  nothing, because the step is finished already.
* After a lost write, the error propagates, and the key is marked as failed. The next attempt reads from the table
  whether the step was committed.
* After a lost completion, the key is marked as failed, and the next attempt finds the finished steps. But if the
  completion was committed, the key is not in progress any more. So it is not marked as failed, and the client gets the
  stored response.

# Note [Writes in doubt]
A local write records "started" at the start of its own transaction, and its result at the end. So other requests never
see a started write without a result, unless the write has ended the transaction in the middle (DDL on MariaDB, a raw
COMMIT). After such an end, the step of the write stays without a result in every case, also after `kill -9`. It is
unknown what the write has committed, so the key is held for a person.
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
    """The journal of one database alias. If the caller has opened a transaction, each method works inside of it."""

    def __init__(self, alias: str) -> None:
        self.alias = alias

    # --- the claimed row, see Note [Fencing]

    def fence(self, claimed: Claimed) -> None:
        """Lock or change the claimed row, so that no takeover commits before this transaction. Raises `LeaseLost`.

        PostgreSQL locks the row. The other databases change the row, for two reasons. The nodes of a Galera cluster
        tell each other which rows a transaction has changed, but not which rows it has locked. SQLite can lock only by
        writing.
        """
        if not connections[self.alias].features.has_select_for_no_key_update:
            self._change(claimed)
        elif not locked(self._own(claimed)).values_list("pk"):
            raise lease_lost()

    def renew(self, claimed: Claimed, lease: float) -> None:
        """Lock the key for `lease` seconds from now. Raises `LeaseLost`."""
        self._change(claimed, locked_until=Clock(plus=lease))

    def refer(self, claimed: Claimed, resource: Resource) -> None:
        """Store the resource that the operation is about. Raises `LeaseLost`."""
        self._change(claimed, resource_type=resource[0], resource_id=resource[1])

    def fail(self, claimed: Claimed, wanted: ClaimRequest, error: str) -> None:
        """End an attempt without a final result, so that the next retry can run at once. Raises `LeaseLost`.

        The text `error` is stored in ASCII, with escapes for other letters, because some databases refuse some letters.
        Then the key would stay locked until its lease is over.
        """
        error = error.encode("ascii", "backslashreplace").decode()
        kept = {"expires_at": Clock(plus=wanted.ttl), "last_error": seal(claimed, "last_error", error)}
        self._change(claimed, status=Status.FAILED, locked_until=None, **kept)

    # --- steps

    def steps(self, claimed: Claimed) -> dict[str, tuple[bool, str | None]]:
        """Return for each step name whether the step is finished, and the result of the step. Raises `LeaseLost`."""
        rows = list(self._own(claimed).values_list("steps__name", "steps__finished_at", "steps__result"))
        if not rows:
            raise lease_lost()
        # All results are read together, before any step, because an attempt that cannot read them must do nothing.
        return {
            name: (finished is not None, unseal(claimed, "result", kept, name))
            for name, finished, kept in rows
            if name is not None  # for a key without steps, the query returns one row with NULL
        }

    def kinds(self, claimed: Claimed) -> dict[str, str]:
        """Return a dict from the name of each step of the key to its kind."""
        return dict(self._steps(claimed.id).values_list("name", "kind"))

    def start_call(self, claimed: Claimed, name: str, *, again: bool, keyed: bool = False) -> None:
        """Record that a call is about to be made. Raises `LeaseLost`.

        again: True if an earlier attempt has started the call already.
        keyed: True if the work has asked for the derived key of this step before the call, so perhaps it was sent.

        If the call is made again, the record keeps the time and the error of the first call, because perhaps a person
        must search for the first call.
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
        """Record a call's result. With the result None, the call is done but its value is lost. Raises `LeaseLost`.

        After an error, the caller can call this method again. See Note [Lost answers].
        """
        with self._atomic():
            self.fence(claimed)
            self._finish(claimed, name, result)

    def keep_fetched(self, claimed: Claimed, name: str, result: str) -> None:
        """Record an external read and its result. Raises `LeaseLost`."""
        with self._atomic():
            self.fence(claimed)
            kept = {"finished_at": Clock(), "result": seal(claimed, "result", result, name)}
            self._add(claimed, name, Kind.FETCH, **kept)

    def note_error(self, claimed: Claimed, name: str, error: str) -> None:
        """Record why a call is in doubt, if the claim is not lost."""
        with suppress(LeaseLost), self._atomic():
            self.fence(claimed)
            self._unfinished(claimed, name).update(error=seal(claimed, "error", error, name))

    def start_write(self, claimed: Claimed, name: str) -> None:
        """Lock the claimed row with `fence`, and record that a local write is about to run. Raises `LeaseLost`.

        Call this first in the transaction of the write. See Note [Writes in doubt].
        """
        self.fence(claimed)
        self._add(claimed, name, Kind.WRITE)

    def finish_write(self, claimed: Claimed, name: str, result: str) -> None:
        """Record a local write's result. Call this last in the transaction of the write.

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
        """Return the names of the calls, and of the writes, that were started and have no result.

        The caller must lock the key first. The read shows what is committed now, even if a plain read would show an
        older snapshot.
        """
        rows = list(locked(self._steps(row_id).filter(UNFINISHED)).values_list("name", "kind"))
        calls = tuple(name for name, kind in rows if kind == Kind.CALL)
        return calls, tuple(name for name, kind in rows if kind != Kind.CALL)

    def has_steps(self, row_id: int) -> bool:
        """Return whether the key has steps. Like `doubts`, this method reads what is committed now."""
        return bool(locked(self._steps(row_id)).values_list("pk")[:1])

    def delete_steps(self, row_id: int) -> None:
        """Delete all steps of a key."""
        self._steps(row_id).delete()

    # ---

    def _own(self, claimed: Claimed) -> QuerySet[IdempotencyKey]:
        """Return a query that finds the claimed row while the row still belongs to this attempt."""
        rows = IdempotencyKey.objects.using(self.alias).filter(key_hash=claimed.key_hash, scope_hash=claimed.scope_hash)
        return rows.filter(pk=claimed.id, attempt=claimed.attempt, status=Status.IN_PROGRESS)

    def _change(self, claimed: Claimed, **changes: Any) -> None:
        # `updated_at` changes every time, because MySQL (without FOUND_ROWS) counts only rows that really change.
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
        # The step is not created by save(), because then a project's signal handler for all models would run between a
        # fence and its step.
        IdempotencyStep.objects.using(self.alias).bulk_create([step])

    def _atomic(self) -> Any:
        """Make the statements commit together, in the caller's transaction or in a new transaction."""
        return transaction.atomic(using=self.alias, savepoint=False)


def locked(rows: QuerySet[Any], *, skip: bool = False) -> QuerySet[Any]:
    """Lock these rows until the transaction ends, if the database has row locks. Duplicates can still read the rows.

    skip: if True and if the database has SKIP LOCKED, rows that another transaction has locked are left out.
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
