"""The journal of leased mode keeps the lease of a committed claim, and the steps of the work.

Each write of the journal is under the fence of its attempt: the write is refused if a newer attempt has the key.

# Note [Fencing]
A worker may sleep for a long time and wake up after its lease is over. So each transaction of a worker first locks or
changes the claimed row, under the condition that the row is still in progress at the worker's own attempt. A takeover,
or an operator's decision, changes the attempt or the status under the same lock. So only two cases are possible. In the
first case, the old worker commits before the change. In the second case, the old worker finds no row, and `LeaseLost`
rolls back its transaction. A test without a lock would not be enough, because the old worker and the new worker could
commit at the same time.

The condition names the hashes of the identity, too. If each tenant has a schema or a database, the work may leave the
connection in another tenant's schema (`SET search_path`, `USE`). In the other schema, id and attempt could match
another key. The hashes also tell the database which partition holds the row.

The start of a call writes a new version of the row on every database. Under REPEATABLE READ, a takeover may have an
older snapshot, which does not show the started call. The new version of the row makes that takeover fail. A lock
without a write would not make the takeover fail, because a lock leaves no new version of the row.

# Note [Lost answers]
A connection may break after a statement was sent and before its answer has come. Then the transaction may have been
committed: the COMMIT took effect, but its answer was lost. So each step must be right whether its transaction was
committed or not:

* The claim: the error propagates. If the claim was committed, the key waits for its lease. No work was done for the
  claim.
* The start of a call: the error propagates, and nothing is called. If the start was committed, the call is in doubt.
* The end of a call is sent again, on a new connection. If the first message was committed, the second message changes
  nothing: the fence still holds, but there is no unfinished step any more.
* A write: the error propagates, and the key is failed. The next attempt reads whether the step was committed.
* The completion: the key is failed, and the next attempt finds the finished steps. If the completion was committed, the
  key is not in progress any more. So the key cannot be failed, and the client gets the stored response.

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
    """The journal of one database alias. If the caller has a transaction, each method works inside that transaction."""

    def __init__(self, alias: str) -> None:
        self.alias = alias

    # --- the claimed row, see Note [Fencing]

    def fence(self, claimed: Claimed) -> None:
        """Hold the claimed row until the transaction ends. Raises `LeaseLost`.

        PostgreSQL locks the row. The other databases change the row, for two reasons. A Galera node compares with the
        other nodes which rows a transaction has changed, but not which rows the transaction has locked. SQLite can lock
        only by writing.
        """
        if not connections[self.alias].features.has_select_for_no_key_update:
            self._change(claimed)
        elif not locked(self._own(claimed)).values_list("pk"):
            raise lease_lost()

    def renew(self, claimed: Claimed, lease: float) -> None:
        """Lock the key for `lease` seconds from now. Raises `LeaseLost`."""
        self._change(claimed, locked_until=Clock(plus=lease))

    def refer(self, claimed: Claimed, resource: Resource) -> None:
        """Store which resource the operation is about. Raises `LeaseLost`."""
        self._change(claimed, resource_type=resource[0], resource_id=resource[1])

    def fail(self, claimed: Claimed, wanted: ClaimRequest, error: str) -> None:
        """End an attempt without a final result, so that the next retry may run at once. Raises `LeaseLost`.

        The text `error` is stored in ASCII, with escapes for other letters. The reason is that a database may refuse
        some letters, and a refused letter would make the key wait for the end of its lease.
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
        # All results are read at once, because an attempt that cannot read what was done must do nothing.
        return {
            name: (finished is not None, unseal(claimed, "result", kept, name))
            for name, finished, kept in rows
            if name is not None  # a key without steps has one row with NULL
        }

    def kinds(self, claimed: Claimed) -> dict[str, str]:
        """Return the kind of each step of the key, by the name of the step."""
        return dict(self._steps(claimed.id).values_list("name", "kind"))

    def start_call(self, claimed: Claimed, name: str, *, again: bool, keyed: bool = False) -> None:
        """Record that a call is about to be made. Raises `LeaseLost`.

        again: an earlier attempt has started the call already.
        keyed: the work has asked for the derived key of this step before the call, so the other side may know the call.

        If the call is made again, the record keeps the time and the error of the first call, because a person may have
        to look up the first call.
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
        """Record a call's result. The result None means: the call is done, but its value is lost. Raises `LeaseLost`.

        The caller may send the statement of `finish_call` a second time. See Note [Lost answers].
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
        """Hold the claimed row as `fence` does, and record that a local write is about to run. Raises `LeaseLost`.

        Call this first in the transaction of the write. See Note [Writes in doubt].
        """
        self.fence(claimed)
        self._add(claimed, name, Kind.WRITE)

    def finish_write(self, claimed: Claimed, name: str, result: str) -> None:
        """Record a local write's result. Call this last in the transaction of the write.

        Raises:
            LeaseLost: another worker has taken the key over.
            TransactionBroken: the write was started in another transaction than the current transaction.
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
        """Return whether the key has steps. The read shows what is committed now, as in `doubts`."""
        return bool(locked(self._steps(row_id)).values_list("pk")[:1])

    def delete_steps(self, row_id: int) -> None:
        """Delete all steps of a key."""
        self._steps(row_id).delete()

    # ---

    def _own(self, claimed: Claimed) -> QuerySet[IdempotencyKey]:
        """Return the claimed row, if the row still belongs to this attempt."""
        rows = IdempotencyKey.objects.using(self.alias).filter(key_hash=claimed.key_hash, scope_hash=claimed.scope_hash)
        return rows.filter(pk=claimed.id, attempt=claimed.attempt, status=Status.IN_PROGRESS)

    def _change(self, claimed: Claimed, **changes: Any) -> None:
        # `updated_at` changes every time, because without FOUND_ROWS, MySQL does not count a row that stays the same.
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
        """Make the statements commit together: with the caller's transaction, if there is a transaction."""
        return transaction.atomic(using=self.alias, savepoint=False)


def locked(rows: QuerySet[Any], *, skip: bool = False) -> QuerySet[Any]:
    """Lock these rows until the transaction ends, as far as the database has row locks. Duplicates can read the rows.

    skip: do not wait for rows that another transaction holds, but leave these rows out, where the database can do this.
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
