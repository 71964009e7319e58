"""What leased mode stores: a committed claim's lease, and the work's steps.

Only the worker whose attempt number is in the key's row may change the lease or the steps. This rule is the fence. Once
another worker has taken the key over, everything that the old worker tries is refused.

# Note [Fencing]
A worker can stall and wake up after its lease has expired. Each of its transactions therefore begins by locking or
changing the claimed row, and proceeds only if the row is in progress with the worker's own attempt number. A takeover
locks the same row before changing the attempt number, and a person's decision locks it before changing the status.
After a takeover or a decision, the old worker therefore cannot commit: `LeaseLost` rolls its transaction back. Without
the lock, both workers could commit at the same time.

Each query for the claimed row also compares the two hashes. If each tenant has its own schema or database, a view may
use `SET search_path` or `USE` to switch its connection to another tenant. The other tenant's table may hold a different
key with the same id and attempt number. A partitioned key table also needs the hashes to find the partition.

On every database, the row is updated before a worker makes a call. Under REPEATABLE READ, a takeover may use a
snapshot taken before the call. The update makes such a takeover fail. A lock alone would not stop it.

# Note [One truth about a key]
The key's row summarizes the state of its steps: `unknown` counts the calls and writes that were started and have no
result, and `effects` counts the calls that have finished, including those whose value was lost. Each statement that
starts or finishes a step runs in the same transaction as the matching change to the row. The fence protects both, so
the steps and the counts cannot disagree:

    start of a call or write      unknown + 1     (a repeated call: no change)
    finish of a call              unknown - 1, effects + 1
    finish of a write             unknown - 1
    a person records a result     the same as the finish of that step
    release                       unknown = 0     (the steps without a result are deleted)
    takeover of an expired row    both 0          (its steps are deleted)

When a key is marked as failed, or a person makes a decision about it, `attention_at` is set if either count is above
0, and is cleared otherwise. It is also cleared when the key is resumed or completed. Claims, cleanups, the admin and
the metrics all rely on the row. Only the steps' names and kinds are read from the step table.

# Note [Lost answers]
A connection may break while a worker waits for the answer to a COMMIT. The worker then does not know whether the
transaction was committed, so there is a rule for each case:

* The claim: the error propagates, and the work does not run. If the claim was committed, the key is locked until its
  lease expires.
* The start of a call: the error propagates, and the call is not made. If the start was committed, the call is in doubt.
* The result of a call: the worker stores it again on a new connection. If the result was committed after all,
  the second attempt is rolled back when it finds that the step already has a result.
* A local write: the error propagates, and the key is marked as failed. The next attempt finds the write's step only if
  the write was committed.
* The completion of the key: the worker tries to mark the key as failed. If the key was completed after all, this is
  refused, and the client gets the stored response. Otherwise, the next attempt does not repeat the finished steps.

# Note [Writes in doubt]
A local write's transaction records the start first and the result at the end, so that others see both or neither. But
the project's function can end that transaction early, for example by a raw COMMIT, or by DDL on MariaDB. If the
function then fails or is killed, the write has no result. The package cannot know what was committed, so a person has
to resolve the key.
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
    from datetime import datetime, timedelta

    from django.db.models import QuerySet

    from ..protocol.outcomes import Claimed, ClaimRequest, Resource

Kind, Status = IdempotencyStep.Kind, IdempotencyKey.Status


class StoredStep(NamedTuple):
    """A stored step, as seen by an attempt. If a finished call has no result, its value is lost."""

    kind: str
    finished: bool
    result: str | None
    keyed: bool
    started_at: datetime
    age: timedelta


class NotRepeatable(Exception):
    """A call in doubt must not be made again.

    The new start has no derived key, an earlier start had none, or the first start was too long ago.
    """


class AlreadyFinished(Exception):
    """The step to finish already has a result, or was never started."""


class Journal:
    """One database alias's journal. Its methods join a transaction that the caller has opened."""

    def __init__(self, alias: str) -> None:
        self.alias = alias

    # --- the claimed row

    def fence(self, claimed: Claimed, *, unknown: int = 0, effects: int = 0) -> None:
        """Lock or change the claimed row, so that a takeover can commit only after this transaction.

        On PostgreSQL, a row whose counts stay the same is only locked. On other databases, the row is always
        changed, because a Galera node sends only changed rows to the other nodes, and SQLite has no row locks. See Note
        [Fencing].

        Args:
            unknown, effects: what to add to the counts. See Note [One truth about a key].

        Raises:
            LeaseLost: the row no longer belongs to this attempt.
            AlreadyFinished: every step has a result, so there is nothing to count down.
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
        """Make the lease expire `lease` seconds from now. Raises `LeaseLost`."""
        self._change(claimed, locked_until=Clock(plus=lease))

    def refer(self, claimed: Claimed, resource: Resource) -> None:
        """Store the type and id of the operation's resource. Raises `LeaseLost`."""
        self._change(claimed, resource_type=resource[0], resource_id=resource[1])

    def fail(self, claimed: Claimed, request: ClaimRequest, error: str) -> None:
        """Mark the key as failed, so that the next retry can run immediately. Raises `LeaseLost`.

        The error is converted to ASCII, because a database may reject other characters, and the key would then stay
        locked until its lease expires.
        """
        error = error.encode("ascii", "backslashreplace").decode()
        ended: dict[str, Any] = {
            "status": Status.FAILED,
            "locked_until": None,
            "expires_at": Clock(plus=request.ttl),
            "last_error": seal(claimed, "last_error", error),
            "updated_at": Clock(),
        }
        if not fail(self._own(claimed), since=request.waits_since, **ended):
            raise lease_lost()

    # --- steps

    def steps(self, claimed: Claimed) -> dict[str, StoredStep]:
        """Return the key's stored steps by name. Raises `LeaseLost`."""
        same = Q(steps__key_hash=claimed.key_hash, steps__scope_hash=claimed.scope_hash)
        own = self._own(claimed).annotate(own=FilteredRelation("steps", condition=same))
        columns = ("name", "kind", "finished_at", "result", "keyed", "started_at")
        rows = list(own.values_list(*(f"own__{column}" for column in columns), Clock()))
        if not rows:
            raise lease_lost()
        # All results are decrypted before any step runs, so if one can't be decrypted, no step runs.
        return {
            name: StoredStep(
                kind, finished is not None, unseal(claimed, "result", result, name), keyed, start, now - start
            )
            for name, kind, finished, result, keyed, start, now in rows
            if name is not None  # a key without steps yields one row of None values
        }

    def start_call(
        self,
        claimed: Claimed,
        name: str,
        *,
        keyed: bool | None,
        again: bool = False,
        anew: bool = False,
        keys_last: float | None = None,
        last: bool = False,
    ) -> None:
        """Record the start of a call before it is made. Raises `LeaseLost`.

        If a call is repeated, the stored error is kept. The stored time is also kept, unless the call starts `anew`.
        This helps a person to look up the earlier call in the called service.

        Args:
            keyed: whether this start follows a `derive_key` call for the step. It is None for `reconcile`, which looks
                a call up rather than making it. With None, the stored value stays the same.
            again: an earlier attempt started this call.
            anew: the doubt about the earlier start was settled, so that only this start can be in doubt.
            keys_last: raise `NotRepeatable` unless this start and all earlier ones are keyed, and the first was less
                than this many seconds ago. With None, nothing is checked.
            last: see `Store.complete`.
        """
        if not again:
            self._start(claimed, name, Kind.CALL, keyed=bool(keyed), last=last)
            return
        with self._atomic():
            self.fence(claimed)
            step = self._unfinished(claimed, name)
            if not step.exists():
                raise lease_lost()
            if keys_last is not None and not (keyed and step.filter(recognizable(keys_last)).exists()):
                raise NotRepeatable
            changes = ({"keyed": False} if keyed is False else {}) | ({"started_at": Clock()} if anew else {})
            step.update(attempt=claimed.attempt, **changes)

    def finish_call(self, claimed: Claimed, name: str, result: str | None, *, last: bool = False) -> None:
        """Record the result of a call. None means that its value is lost. Raises `LeaseLost`.

        A caller that tries again after a database error can treat `AlreadyFinished` as success. See Note [Lost
        answers].
        """
        self._end(claimed, name, result, effects=1, last=last)

    def enter_lost(self, claimed: Claimed, name: str, result: str) -> None:
        """Store the lost value of a finished call. Raises `LeaseLost`."""
        with self._atomic():
            self.fence(claimed)
            steps_of(self.alias, claimed).filter(LOST, name=name).update(result=seal(claimed, "result", result, name))

    def keep_fetched(self, claimed: Claimed, name: str, result: str) -> None:
        """Record an external read with its result. Raises `LeaseLost`."""
        with self._atomic():
            self.fence(claimed)
            values = {"finished_at": Clock(), "result": seal(claimed, "result", result, name)}
            self._add(claimed, name, Kind.FETCH, **values)

    def note_error(self, claimed: Claimed, name: str, error: str) -> None:
        """Store the error from a call whose outcome is unknown, unless this attempt has lost its claim."""
        with suppress(LeaseLost), self._atomic():
            self.fence(claimed)
            self._unfinished(claimed, name).update(error=seal(claimed, "error", error, name))

    def start_write(self, claimed: Claimed, name: str) -> None:
        """Record the start of a local write, before anything else in its transaction. Raises `LeaseLost`.

        See Note [Writes in doubt].
        """
        self._start(claimed, name, Kind.WRITE)

    def has(self, claimed: Claimed, name: str) -> bool:
        """Wait until the earlier transactions of this attempt have ended, then return whether the step has a row.

        A server may still be working on a COMMIT after its connection has broken. Raises `LeaseLost`.
        """
        self.fence(claimed)
        return name in self.steps(claimed)

    def finish_write(self, claimed: Claimed, name: str, result: str, *, last: bool = False) -> None:
        """Record the result of a local write in its transaction. See `Store.complete` about `last`.

        Raises:
            LeaseLost: another worker has taken the key over.
            TransactionBroken: the transaction in which the write was started has been rolled back.
        """
        try:
            self._end(claimed, name, result, last=last)
        except AlreadyFinished as error:
            raise TransactionBroken(
                f"The database has rolled back the transaction of operation.write({name!r}), most often because of a "
                "deadlock, and its function has caught that error and returned. Nothing of the write was committed. "
                "Let the error propagate: the next retry runs the write again."
            ) from error

    # --- for the claim

    def doubts(self, row: Claimed, keys_last: float) -> list[Doubt]:
        """Return the steps without a result. The caller must lock the key first.

        The steps are also locked, so that the query reads the latest committed rows rather than an older snapshot.
        """
        again = ExpressionWrapper(recognizable(keys_last), BooleanField())
        rows = locked(steps_of(self.alias, row).filter(UNFINISHED)).order_by("pk").values_list("name", "kind", again)
        return [Doubt(name, kind == Kind.CALL, bool(keyed)) for name, kind, keyed in rows]

    def has_steps(self, row: Claimed) -> bool:
        """Whether the key has steps. Like `doubts`, this reads the latest committed rows."""
        return bool(locked(steps_of(self.alias, row)).values_list("pk")[:1])

    # ---

    def _own(self, claimed: Claimed) -> QuerySet[IdempotencyKey]:
        """The claimed row, or no row if this attempt has lost its claim."""
        rows = IdempotencyKey.objects.using(self.alias).filter(key_hash=claimed.key_hash, scope_hash=claimed.scope_hash)
        return rows.filter(pk=claimed.id, attempt=claimed.attempt, status=Status.IN_PROGRESS)

    def _change(self, claimed: Claimed, **changes: Any) -> None:
        # `updated_at` always gets a new value: without FOUND_ROWS, MySQL counts only rows whose values have changed.
        if self._own(claimed).update(updated_at=Clock(), **changes) != 1:
            raise lease_lost()

    def _unfinished(self, claimed: Claimed, name: str) -> QuerySet[IdempotencyStep]:
        return steps_of(self.alias, claimed).filter(UNFINISHED, name=name)

    def _start(self, claimed: Claimed, name: str, kind: str, *, keyed: bool = False, last: bool = False) -> None:
        """Count a call or a write as started, and add its step. Raises `LeaseLost`."""
        with self._atomic():
            self.fence(claimed, unknown=1)
            self._add(claimed, name, kind, keyed=keyed)

    def _end(self, claimed: Claimed, name: str, result: str | None, *, effects: int = 0, last: bool = False) -> None:
        """Count a step as finished, and store its result. Raises `LeaseLost` or `AlreadyFinished`."""
        with self._atomic():
            self.fence(claimed, unknown=-1, effects=effects)
            sealed = seal(claimed, "result", result, name)
            if not self._unfinished(claimed, name).update(result=sealed, finished_at=Clock()):
                raise AlreadyFinished

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
        # Don't use save(), whose signals would run the project's code between the fence and the step.
        IdempotencyStep.objects.using(self.alias).bulk_create([step])

    def _atomic(self) -> Any:
        """A transaction for several statements, or the caller's transaction if one is open."""
        return transaction.atomic(using=self.alias, savepoint=False)


LOST = Q(kind=Kind.CALL, finished_at__isnull=False, result=None)
"""A finished call whose value could not be stored."""


def recognizable(keys_last: float) -> Q:
    """A call that may be made again under "retry-keyed", because the called service still knows its key."""
    return Q(keyed=True, started_at__gt=Clock(plus=-keys_last))


def steps_of(alias: str, row: Claimed | IdempotencyKey) -> QuerySet[IdempotencyStep]:
    """One key's steps, found by the key's id and hashes, because two partitions or two tenants may use the same id."""
    steps = IdempotencyStep.objects.using(alias)
    return steps.filter(key=row.id, key_hash=row.key_hash, scope_hash=row.scope_hash)


def fail(rows: QuerySet[IdempotencyKey], *, since: datetime | None = None, **changes: Any) -> int:
    """Mark locked or fenced rows as failed, and return their number.

    If either count of a row is above 0, its `attention_at` is set to `since`, or by default to the current time. See
    Note [One truth about a key].

    This takes two statements, because Citus doesn't allow a clock inside CASE.
    """
    settled = rows.filter(SETTLED).update(**changes, attention_at=None)
    return settled + rows.exclude(SETTLED).update(**changes, attention_at=since or Clock())


def locked(rows: QuerySet[Any], *, skip: bool = False) -> QuerySet[Any]:
    """Lock a query's rows until the transaction ends, on databases with row locks.

    Plain reads still see the rows. With `skip`, rows that another transaction has locked are left out, if the database
    supports it.
    """
    features = connections[rows.db].features
    skips = skip and features.has_select_for_update_skip_locked
    return rows.select_for_update(no_key=features.has_select_for_no_key_update, skip_locked=skips)


def lease_lost() -> LeaseLost:
    return LeaseLost(
        "The lease of this operation expired, and another worker has taken over its idempotency key, or an operator "
        "has decided its outcome. Nothing of this step was committed. If the work is slow, pass a longer lease= or "
        "call operation.renew() in between. If the work switches the schema or the database (search_path, USE), let it "
        "switch back before each step and before it returns."
    )
