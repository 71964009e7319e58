"""The contract of a store: who remembers which keys were used.

A store works on the connection of its alias and inside the transaction that its caller has opened: what it
writes commits or rolls back together with the business write. All times come from the database's clock.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

from django.db import DEFAULT_DB_ALIAS, DatabaseError, connections, router
from django.db.backends.utils import CursorWrapper

from ...exceptions import ClaimLost, IdempotencyConfigurationError
from ...models import IdempotencyKey
from ..protocol.claims import ClaimRequest
from ..protocol.outcomes import Claimed, ClaimOutcome, Completed, Conflicted, InDoubt, Mismatched
from ..protocol.snapshots import Snapshot, encode_headers
from .leases import Leases
from .statements import Row, Statements, Status

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper


class Held(Exception):
    """Somebody else is running this key right now. Stays inside the stores."""


class Store(Leases, ABC):
    """The key table of one database alias. Threads may share it: it keeps no state but its SQL."""

    vendor: ClassVar[str]
    clock: ClassVar[str]
    """SQL for the database's clock, now: not the transaction's start, not the application's clock."""
    clock_once: ClassVar[str] = ""
    """SQL for the clock read once in a statement, where `clock` itself could not bound an index scan."""
    later: ClassVar[str]
    """SQL for the clock plus a parameter in seconds."""
    skip_locked: ClassVar[str] = ""
    """SQL that makes a purge pass over rows that another transaction holds, where there is such a thing."""
    lock: ClassVar[str] = ""
    """SQL that makes a SELECT lock its row against other writers; empty where a transaction locks everything."""
    lock_or_skip: ClassVar[str] = ""
    """The same for a takeover: no row where another transaction holds it, if the database can do that safely."""
    share: ClassVar[str] = ""
    """SQL that makes a SELECT read what is committed now, where it would otherwise show the past."""
    by_id: ClassVar[str] = ""
    """SQL that makes an UPDATE find its row by id, where the optimizer may choose, and lock, more than that row."""

    def __init__(self, alias: str) -> None:
        self.alias = alias

    # --- what the engine calls ---------------------------------------------------------------------------

    def claim(self, claim: ClaimRequest) -> ClaimOutcome:
        """Claim a key, or say why not. The first statement of its transaction; blocks for at most `wait`.

        May mark the transaction for rollback when the outcome is `Conflicted`. Database errors propagate.
        """
        try:
            # Twice: the row that stopped the first insert may be gone (cleanup) or done (its owner) by then.
            for _ in range(2):
                if (row_id := self._insert(claim)) is not None:
                    return Claimed(id=row_id, attempt=1)
                row = self._read(claim)
                if row is None:
                    continue
                if not row.expired:
                    return row.judge(claim) or self._resume(row, claim)
                if (attempt := self._take_over(row.id, claim)) is not None:
                    self._delete_steps(row.id)
                    return Claimed(id=row.id, attempt=attempt)
        except Held:
            pass
        return Conflicted()

    def look(self, claim: ClaimRequest) -> Completed | Mismatched | Conflicted:
        """What a duplicate of this claim would be told now. Claims nothing and locks nothing."""
        row = self._fetch(self._sql.look, [claim.identity.key_hash, claim.identity.scope_hash])
        return Conflicted() if row is None or row.expired else row.judge(claim) or Conflicted()

    def complete(self, claimed: Claimed, snapshot: Snapshot, *, ttl: float | None = None, last: bool = False) -> None:
        """Keep the result with the claim. Raises `ClaimLost` if the row is not ours any more.

        ttl: seconds that the result is kept from now on; None: as the claim has said.
        last: nothing but the end of the caller's `atomic()` follows, so that the COMMIT may travel along. Then errors
        of the COMMIT are raised from here.
        """
        self._write(
            self._sql.complete,
            [
                snapshot.status_code,
                encode_headers(snapshot.headers),
                snapshot.body,
                ttl,
                claimed.id,
                claimed.attempt,
            ],
            last=last,
        )

    def release(self, claimed: Claimed, *, last: bool = False) -> None:
        """Free the key, as if it had never been seen. Raises `ClaimLost` if the row is not ours any more.

        last: as for `complete`.
        """
        if claimed.attempt > 1:
            self._delete_steps(claimed.id)
        self._write(self._sql.release, [claimed.id, claimed.attempt], last=last)

    def owns(self, sql: str) -> bool:
        """Is this a statement about the package's own tables?"""
        return self._sql.table in sql or self._sql.steps in sql

    def is_broken(self) -> bool:
        """Has the current transaction lost its writes, so that it can only be rolled back?"""
        return self.connection.needs_rollback or self.connection.closed_in_transaction

    @abstractmethod
    def may_repeat(self, error: DatabaseError) -> bool:
        """Does this error of a claim go away in a fresh transaction (deadlock, serialization failure)?"""

    @abstractmethod
    def is_unmigrated(self, error: DatabaseError) -> bool:
        """Does this error of a statement of ours mean that a table or a column is not there?"""

    def explain(self, error: DatabaseError) -> None:
        """Raise `IdempotencyConfigurationError` where this error of a statement of ours means a missing migration."""
        if not self.is_unmigrated(error):
            return
        routed = router.allow_migrate_model(self.alias, IdempotencyKey)
        raise IdempotencyConfigurationError(
            f"database {self.alias!r} has no up-to-date table {IdempotencyKey._meta.db_table!r}. "
            + ("" if routed else "DATABASE_ROUTERS keep it out: let allow_migrate() return True for it there. ")
            + f"Run: python manage.py migrate{'' if self.alias == DEFAULT_DB_ALIAS else f' --database {self.alias}'}"
        ) from error

    def is_busy(self, error: DatabaseError) -> bool:
        """Does this error of a claim only mean that the database could not be asked in time?"""
        return False

    @abstractmethod
    def purge(self, batch_size: int, not_before: Any = None) -> tuple[int, Any]:
        """Delete up to `batch_size` expired keys in the current transaction.

        `not_before` is the second value of the previous batch's return value: where that one stopped, so that
        a batch does not step over the rows that were deleted before it. Returns the number of deleted rows and
        the next `not_before`.
        """

    def count_expired(self) -> int:
        """How many keys `purge` would delete now."""
        return self._count(self._sql.are_expired)

    # --- what a database brings ----------------------------------------------------------------------------

    @abstractmethod
    def _insert(self, claim: ClaimRequest) -> int | None:
        """Insert the row; its id, or None if the key is taken or being taken."""

    @abstractmethod
    def _read(self, claim: ClaimRequest) -> Row | None:
        """The committed row; None if it is gone. Raises `Held` if somebody else is at work on it."""

    @abstractmethod
    def _take_over(self, row_id: int, claim: ClaimRequest) -> int | None:
        """Make an expired row ours: the new attempt, or None if it is not expired any more. Its steps stay."""

    # --- shared ----------------------------------------------------------------------------------------------

    @property
    def connection(self) -> BaseDatabaseWrapper:
        return connections[self.alias]

    @cached_property
    def _sql(self) -> Statements:
        return Statements(self)

    def _cursor(self) -> CursorWrapper:
        return self.connection.cursor()

    def _resume(self, row: Row, claim: ClaimRequest) -> Claimed | Conflicted | InDoubt:
        """Go on where an attempt has failed or was abandoned, unless one of its calls is in doubt.

        One winner: the row is locked under the condition that it still is as it was read.
        """
        sql = self._sql
        with self._cursor() as cursor:
            cursor.execute(sql.lock_for_resuming, [row.id, row.attempt, row.status])
            if cursor.fetchone() is None:
                return Conflicted()
            cursor.execute(sql.doubts, [row.id])
            doubts = tuple(name for (name,) in cursor.fetchall())
            if doubts and not claim.repeats_calls:
                # The attempt stays as it is, so that its worker, if it lives, can still record the call's result.
                return InDoubt()
            cursor.execute(sql.resume, [claim.ttl, claim.lease, row.id])
        abandoned = row.status == Status.IN_PROGRESS
        return Claimed(id=row.id, attempt=row.attempt + 1, abandoned=abandoned, in_doubt=doubts)

    def _delete_steps(self, row_id: int) -> None:
        with self._cursor() as cursor:
            cursor.execute(self._sql.delete_steps, [row_id])

    def _write(self, sql: str, params: list[Any], *, last: bool) -> None:
        with self._cursor() as cursor:
            cursor.execute(sql, params)
            if cursor.rowcount != 1:
                raise row_gone()

    def _new_row(self, claim: ClaimRequest) -> list[Any]:
        """The parameters of `Statements.columns`."""
        identity = claim.identity
        return [
            identity.key_hash,
            identity.scope_hash,
            identity.scope,
            identity.operation,
            identity.key,
            claim.fingerprint,
            Status.IN_PROGRESS.value,
            claim.ttl,
            claim.lease,
        ]

    def _fetch(self, sql: str, params: list[Any]) -> Row | None:
        with self._cursor() as cursor:
            cursor.execute(sql, params)
            values = cursor.fetchone()
        return None if values is None else Row.of(values)


def row_gone() -> ClaimLost:
    return ClaimLost(
        "The row of this request's idempotency key is gone: the view deleted it. "
        "Nothing was committed. Leave the key table to the package."
    )
