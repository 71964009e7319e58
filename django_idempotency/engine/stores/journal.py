"""The journal of leased mode: the lease of a committed claim, and its steps, each under the fence of its attempt.

# Note [Fencing]
A worker may sleep for a long time and wake up after its lease is over. So each of its transactions first locks or
changes the claimed row, under the condition that the row is still in progress at the worker's own attempt. A takeover,
or an operator's decision, changes the attempt or the status under the same lock. So there are two cases only: the old
worker commits before the change; or it finds no row, and `LeaseLost` rolls back what it was about to commit. To test
without a lock whether the row is there would not be enough: both transactions could commit side by side.

The condition names the hashes of the identity, too. With a schema or a database for each tenant, the work may leave
the connection in another tenant's schema (`SET search_path`, `USE`). There, id and attempt could match another key.
The hashes also tell the database which partition holds the row.

The start of a call writes a new version of the row on every database. Under REPEATABLE READ, a takeover with an older
snapshot fails on that version. Without it, the takeover would not see the call that is in doubt from now on. A lock
alone leaves no version.

# Note [Lost answers]
A connection may break after a statement was sent and before its answer has come. Then the transaction may have been
committed, as with a COMMIT whose answer is lost. So each step must be right in both cases:

* The claim: the error propagates. If the claim was committed, the key waits for its lease. Nothing was done under it.
* The start of a call: the error propagates, and nothing is called. If the start was committed, the call is in doubt.
* The end of a call is sent again, on a new connection. If the first was committed, the second finds no unfinished step
  under a fence that holds, and changes nothing.
* A write: the error propagates, and the key is failed. The next attempt reads whether the step was committed.
* The completion: the key is failed, and the next attempt finds its steps. If the completion was committed, the fence of
  the failure does not hold, and the client gets the stored response.

# Note [Writes in doubt]
A local write records "started" in its own transaction, and its result at the end. So no other request ever sees that
it was started, unless the write has ended the transaction in the middle (DDL on MariaDB, a raw COMMIT). Then the step
stays without a result in every case, also after `kill -9`. It is unknown what was committed: the key is held.
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
    """The journal of one database alias. Each method works inside its caller's transaction, if there is one."""

    def __init__(self, alias: str) -> None:
        self.alias = alias

    # --- the claimed row: see Note [Fencing]

    def fence(self, claimed: Claimed) -> None:
        """Hold the claimed row until the transaction ends. Raises `LeaseLost`.

        PostgreSQL locks the row. The others change it: a Galera node compares with the other nodes what a transaction
        has changed, and never what it has locked; and SQLite locks by writing.
        """
        if not connections[self.alias].features.has_select_for_no_key_update:
            self._change(claimed)
        elif not locked(self._own(claimed)).values_list("pk"):
            raise lease_lost()

    def renew(self, claimed: Claimed, lease: float) -> None:
        """Lock the key for `lease` seconds from now. Raises `LeaseLost`."""
        self._change(claimed, locked_until=Clock(plus=lease))

    def refer(self, claimed: Claimed, resource: Resource) -> None:
        """Keep what the operation is about. Raises `LeaseLost`."""
        self._change(claimed, resource_type=resource[0], resource_id=resource[1])

    def fail(self, claimed: Claimed, wanted: ClaimRequest, error: str) -> None:
        """End an attempt without a final result: the next retry may run at once. Raises `LeaseLost`.

        error: kept in ASCII, other letters as escapes. A database may lack a letter, and because of that the key must
            not wait for its lease.
        """
        error = error.encode("ascii", "backslashreplace").decode()
        kept = {"expires_at": Clock(plus=wanted.ttl), "last_error": seal(claimed, "last_error", error)}
        self._change(claimed, status=Status.FAILED, locked_until=None, **kept)

    # --- steps

    def steps(self, claimed: Claimed) -> dict[str, tuple[bool, str | None]]:
        """The steps of the key by name: whether they are finished, and the result. Raises `LeaseLost`."""
        rows = list(self._own(claimed).values_list("steps__name", "steps__finished_at", "steps__result"))
        if not rows:
            raise lease_lost()
        # All of them at once: an attempt that cannot read what was done must do nothing.
        return {
            name: (finished is not None, unseal(claimed, "result", kept, name))
            for name, finished, kept in rows
            if name is not None  # a key without steps
        }

    def kinds(self, claimed: Claimed) -> dict[str, str]:
        """The kind of each step of the key, by its name."""
        return dict(self._steps(claimed.id).values_list("name", "kind"))

    def start_call(self, claimed: Claimed, name: str, *, again: bool, keyed: bool = False) -> None:
        """Record that a call is about to be made. Raises `LeaseLost`.

        again: an earlier attempt has started the call already. The time of the first start and the error stay: a person
            may have to look the first call up.
        keyed: the work has asked for the derived key of this step before the call, so the other side may know the call.
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
        """Record a call's result; None: the call is done, but its value could not be kept. Raises `LeaseLost`.

        May be sent twice: see Note [Lost answers].
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

        It is the first statement in the transaction of the write. See Note [Writes in doubt].
        """
        self.fence(claimed)
        self._add(claimed, name, Kind.WRITE)

    def finish_write(self, claimed: Claimed, name: str, result: str) -> None:
        """Record the result of a local write. It is the last statement in the transaction of the write.

        Raises:
            LeaseLost: another worker has taken the key over.
            TransactionBroken: the transaction is not the one in which the write was started.
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
        """The names of the calls, and of the writes, that were started and have no result. Lock the key first.

        Reads what is committed now, also where a plain read shows an older snapshot.
        """
        rows = list(locked(self._steps(row_id).filter(UNFINISHED)).values_list("name", "kind"))
        calls = tuple(name for name, kind in rows if kind == Kind.CALL)
        return calls, tuple(name for name, kind in rows if kind != Kind.CALL)

    def has_steps(self, row_id: int) -> bool:
        """Whether the key has steps. Reads as `doubts` does."""
        return bool(locked(self._steps(row_id)).values_list("pk")[:1])

    def delete_steps(self, row_id: int) -> None:
        """Delete all steps of a key."""
        self._steps(row_id).delete()

    # ---

    def _own(self, claimed: Claimed) -> QuerySet[IdempotencyKey]:
        """The claimed row, if it still belongs to this attempt."""
        rows = IdempotencyKey.objects.using(self.alias).filter(key_hash=claimed.key_hash, scope_hash=claimed.scope_hash)
        return rows.filter(pk=claimed.id, attempt=claimed.attempt, status=Status.IN_PROGRESS)

    def _change(self, claimed: Claimed, **changes: Any) -> None:
        # The time is always another one: without FOUND_ROWS, MySQL does not count a row that stays the same.
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
        # Not save(): a signal handler for all models must not run between a fence and its step.
        IdempotencyStep.objects.using(self.alias).bulk_create([step])

    def _atomic(self) -> Any:
        """The statements commit together: with the caller's transaction, if there is one."""
        return transaction.atomic(using=self.alias, savepoint=False)


def locked(rows: QuerySet[Any], *, skip: bool = False) -> QuerySet[Any]:
    """Lock these rows until the transaction ends, as far as the database has such locks. Duplicates can read them.

    skip: pass over the rows that another transaction holds, where the database can do that.
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
