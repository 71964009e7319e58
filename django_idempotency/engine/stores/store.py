"""The contract of a store: claim a key, and keep or give up the claim.

A store works on the connection of its alias, inside the transaction that its caller has opened. What the store writes
commits or rolls back together with the business write. All times come from the database's clock. No claim waits for
another request: `execution` asks again, with no transaction open in between.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, assert_never

from django.db import DEFAULT_DB_ALIAS, DatabaseError, connections, router, transaction

from ...exceptions import ClaimLost, IdempotencyConfigurationError
from ...models import IdempotencyKey
from ..protocol.decision import Resume, Status, StoredKey, TakeOver, decide, resumed
from ..protocol.outcomes import (
    Claimed,
    ClaimOutcome,
    ClaimRequest,
    Completed,
    Conflicted,
    InDoubt,
    Mismatched,
    Resource,
    Snapshot,
    TooOld,
)
from .journal import Journal
from .queries import Dialect, Queries, Values, as_stored_key, values_of, values_of_claim
from .running import RunningTransaction
from .sealing import seal_response
from .states import EXPIRED

if TYPE_CHECKING:
    from django.core.checks import CheckMessage
    from django.db.backends.base.base import BaseDatabaseWrapper

LONG_AGO = "1970-01-02"


class KeyLocked(Exception):
    """Another transaction is working on this key right now. Never leaves the stores."""


class Store(ABC):
    """The key table of one database alias. Threads may share the object: it keeps nothing but its SQL."""

    dialect: ClassVar[Dialect]

    def __init__(self, alias: str) -> None:
        self.alias = alias

    @property
    def connection(self) -> BaseDatabaseWrapper:
        """This thread's connection."""
        return connections[self.alias]

    def is_broken(self, connection: BaseDatabaseWrapper) -> bool:
        """Whether the current transaction has lost its writes, so that it can only be rolled back."""
        return connection.get_rollback() or connection.closed_in_transaction

    def has_ended(self, connection: BaseDatabaseWrapper, claimed: Claimed) -> bool:
        """Whether the transaction that Django takes for open is over, so that each statement commits by itself.

        claimed: the claim that the transaction began with.
        """
        return self.has_no_transaction(connection)

    @abstractmethod
    def has_no_transaction(self, connection: BaseDatabaseWrapper) -> bool:
        """Whether the driver has no open transaction, where Django has one. Asks the driver, not the server."""

    def has_begun(self, connection: BaseDatabaseWrapper) -> bool:
        """Whether the driver has an open transaction, where Django has none: a raw BEGIN. Asks the driver alone."""
        return False

    def may_repeat(self, error: DatabaseError) -> bool:
        """Whether this error of a claim may go away in a new transaction: a deadlock, a serialization failure."""
        return False

    def check(self) -> Iterable[CheckMessage]:
        """System checks that query the database: whether its set-up can keep the promises."""
        return ()

    def was_rolled_back(self, error: DatabaseError) -> bool:
        """Whether this error means that the database has rolled the whole transaction back in favour of another."""
        return False

    def is_busy(self, error: DatabaseError) -> bool:
        """Whether this error of a claim means only that the database did not answer in time."""
        return False

    @abstractmethod
    def is_unmigrated(self, error: DatabaseError) -> bool:
        """Whether this error of a query of ours means that a table or a column is missing."""

    def explain(self, error: DatabaseError) -> None:
        """Raise `IdempotencyConfigurationError` if this error of a query of ours means a missing migration."""
        if not self.is_unmigrated(error):
            return
        routed = router.allow_migrate_model(self.alias, IdempotencyKey)
        raise IdempotencyConfigurationError(
            f"database {self.alias!r} has no up-to-date table {IdempotencyKey._meta.db_table!r}. "
            + ("" if routed else "DATABASE_ROUTERS keep it out: let allow_migrate() return True for it there. ")
            + f"Run: python manage.py migrate{'' if self.alias == DEFAULT_DB_ALIAS else f' --database {self.alias}'}"
        ) from error

    @cached_property
    def journal(self) -> Journal:
        """The leases and the steps of leased mode."""
        return Journal(self.alias)

    # --- what the engine calls

    def claim(self, wanted: ClaimRequest) -> ClaimOutcome:
        """Claim a key, or say why not. The first statement of its transaction. Database errors propagate."""
        try:
            # Two rounds: the row that stopped the first INSERT may have been deleted or completed since.
            for _ in range(2):
                if (outcome := self._claim_once(wanted)) is not None:
                    return outcome
        except KeyLocked:
            return self._locked(wanted)
        return Conflicted()

    def claim_and_commit(self, wanted: ClaimRequest) -> ClaimOutcome:
        """The same in a transaction of its own: the claim of leased mode commits first. See Note [Lost answers]."""
        with transaction.atomic(using=self.alias):
            return self.claim(wanted)

    def resume(self, wanted: ClaimRequest, attempt: int) -> Claimed | Conflicted | InDoubt:
        """Begin the next attempt of a failed or abandoned key, as `claim` does for a retry. Never inserts a row.

        The first statement of its transaction. Fingerprint and steps stay as they are.

        attempt: the attempt at which the caller has seen the key. At another one, the outcome is `Conflicted`.
        """
        stored = self._stored(self._sql.look, values_of(wanted))
        if stored is None or stored.attempt != attempt:
            return Conflicted()
        match decide(stored, wanted):
            case Resume():
                return self._resume(stored, wanted)
            case InDoubt() as doubt:
                return doubt
            case _:
                return Conflicted()

    def look(self, wanted: ClaimRequest) -> Completed | Mismatched | Conflicted | InDoubt | TooOld:
        """The answer that a duplicate of this request would get now. Claims nothing and locks nothing."""
        stored = self._stored(self._sql.look, values_of(wanted))
        decision = Conflicted() if stored is None else decide(stored, wanted)
        return Conflicted() if isinstance(decision, TakeOver | Resume) else decision

    def complete(
        self,
        claimed: Claimed,
        snapshot: Snapshot,
        *,
        ttl: float | None = None,
        resource: Resource | None = None,
        last: bool = False,
    ) -> None:
        """Store the response with the claim. Raises `ClaimLost` if the row does not belong to the claim any more.

        ttl: seconds that the response is kept from now on. None: the time that was set at the claim stands.
        resource: what the operation is about. None: what is stored stands.
        last: nothing but the end of the caller's `atomic()` follows, so the COMMIT may travel with the statement. Then
            errors of the COMMIT are raised from here.
        """
        headers, body = seal_response(claimed, snapshot)
        type_, id_ = resource or (None, None)
        values = {
            **values_of_claim(claimed),
            "status_code": snapshot.status_code,
            "headers": headers,
            "body": body,
            "ttl": ttl,
            "resource_type": type_,
            "resource_id": id_,
        }
        if last:
            self._write_last("complete", values)
        else:
            self._execute_or(claim_lost, self._sql.complete, values)

    def release(self, claimed: Claimed) -> None:
        """Free the key, as if it had never been seen. Raises `ClaimLost` if the row is not the claim's any more.

        The last statement of the caller's `atomic()`: the COMMIT may travel with it, as with the `last` of `complete`.
        """
        self._write_last("release", values_of_claim(claimed))

    def owns(self, sql: str) -> bool:
        """Whether this is a statement about the package's own tables."""
        return self._sql.table in sql or self._sql.steps in sql

    # --- cleanup

    def purge(self, batch_size: int, not_before: Any = None) -> tuple[int, Any]:
        """Delete up to `batch_size` expired keys in the current transaction.

        Returns the number of deleted keys, and the `not_before` for the next batch. With it, the next batch starts
        where this one has stopped, and need not step over the rows that were deleted before: an old snapshot elsewhere
        may keep their entries in the index for hours.
        """
        rows = self._fetch_all(self._sql.read_expired, {"not_before": not_before or LONG_AGO, "limit": batch_size})
        if rows:
            ids = json.dumps([row[0] for row in rows])
            for delete in self._sql.purge:
                self._execute(delete, {"ids": ids})
        return len(rows), rows[-1][1] if rows else not_before

    def count_expired(self) -> int:
        """How many keys `purge` would delete now."""
        return IdempotencyKey.objects.using(self.alias).filter(EXPIRED.condition).count()

    def running(self) -> list[RunningTransaction] | None:
        """The open transactions that hold keys of atomic mode, the oldest first. None: this database does not tell."""
        return None

    # --- what a database brings

    @abstractmethod
    def _insert(self, wanted: ClaimRequest) -> int | None:
        """Insert the row. Its id, or None if the key is stored already or another transaction is inserting it."""

    def _read(self, wanted: ClaimRequest) -> StoredKey | None:
        """The committed row, or None if there is none. Raises `KeyLocked` if another transaction works on it."""
        return self._stored(self._sql.look, values_of(wanted))

    def _locked(self, wanted: ClaimRequest) -> ClaimOutcome:
        """What a request is told while another transaction works on its key."""
        return Conflicted()

    def _write_last(self, name: str, values: Values) -> None:
        """Change the own claim by this statement of `Queries`. The COMMIT may travel with it. Raises `ClaimLost`."""
        self._execute_or(claim_lost, getattr(self._sql, name), values)

    # --- shared

    @cached_property
    def _sql(self) -> Queries:
        return Queries(self.dialect, self.alias)

    def _claim_once(self, wanted: ClaimRequest) -> ClaimOutcome | None:
        """One round. None: another transaction has changed or deleted the row in between."""
        if not wanted.known_only and (row_id := self._insert(wanted)) is not None:
            return new_claim(row_id, wanted)
        stored = self._read(wanted)
        if stored is None:
            return TooOld() if wanted.known_only else None
        decision = decide(stored, wanted)
        match decision:
            case Completed() | Mismatched() | Conflicted() | InDoubt() | TooOld():
                return decision
            case TakeOver():
                return self._take_over(stored, wanted)
            case Resume():
                return self._resume(stored, wanted)
            case _:
                assert_never(decision)

    def _take_over(self, stored: StoredKey, wanted: ClaimRequest) -> Claimed | None:
        """Claim an expired row, unless another request was faster."""
        values = _values_of_row(stored, wanted)
        expired, _ = self._fetch(self._sql.lock, values) or (False, False)
        if not expired:
            return None
        self._execute(self._sql.take_over, values)
        self.journal.delete_steps(stored.id)
        return new_claim(stored.id, wanted, attempt=stored.attempt + 1)

    def _resume(self, stored: StoredKey, wanted: ClaimRequest) -> Claimed | Conflicted | InDoubt:
        """Begin the next attempt of a failed or abandoned key, unless one of its calls is in doubt.

        One request wins: it locks the row under the condition that nothing has changed since the row was read.
        """
        values = _values_of_row(stored, wanted)
        locked = self._fetch(self._sql.lock, values)
        if locked is None or not (stored.status is Status.FAILED or locked[1]):
            return Conflicted()
        if wanted.lease is None and self.journal.has_steps(stored.id):
            # The view was leased once. Work in atomic mode would repeat the finished steps, which it does not know.
            return InDoubt(attempt=stored.attempt, resource=stored.resource)
        outcome = resumed(stored, wanted, *self.journal.doubts(stored.id))
        if isinstance(outcome, Claimed):
            self._execute(self._sql.resume, values)
        return outcome

    def _fetch(self, sql: str, values: Any = None) -> Any:
        """The first row, or None."""
        with self.connection.cursor() as cursor:
            cursor.execute(sql, values or {})  # without values, the doubled percent signs of a clock would stay
            return cursor.fetchone()

    def _fetch_all(self, sql: str, values: Any = None) -> list[Any]:
        with self.connection.cursor() as cursor:
            cursor.execute(sql, values or {})
            return list(cursor.fetchall())

    def _execute(self, sql: str, values: Any = None) -> int:
        """How many rows the statement has changed."""
        with self.connection.cursor() as cursor:
            cursor.execute(sql, values or {})
            return int(cursor.rowcount)

    def _execute_or(self, lost: Callable[[], Exception], sql: str, values: Any) -> None:
        """Change exactly one row, or raise."""
        if self._execute(sql, values) != 1:
            raise lost()

    def _stored(self, sql: str, values: Values) -> StoredKey | None:
        row = self._fetch(sql, values)
        return None if row is None else as_stored_key(row)


def _values_of_row(stored: StoredKey, wanted: ClaimRequest) -> Values:
    return {**values_of(wanted), "id": stored.id, "attempt": stored.attempt, "status": stored.status.value}


def new_claim(row_id: int, wanted: ClaimRequest, attempt: int = 1) -> Claimed:
    of = wanted.identity
    return Claimed(
        key_hash=of.key_hash, scope_hash=of.scope_hash, id=row_id, attempt=attempt, fingerprint=wanted.fingerprint
    )


def claim_lost() -> ClaimLost:
    return ClaimLost(
        "The row of this request's idempotency key is not there any more: the view deleted it, or switched to another "
        "schema or database (search_path, USE) and did not switch back. This transaction is rolled back. "
        "Leave the key table to the package, and end the view in the schema in which it began."
    )
