"""The contract of a store: who remembers which keys were used.

A store works on the connection of its alias and inside the transaction that its caller has opened: what it
writes commits or rolls back together with the business write. All times come from the database's clock.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

from django.db import DatabaseError, connections
from django.db.backends.utils import CursorWrapper

from ..exceptions import ClaimLost
from ..models import IdempotencyKey
from ..protocol.outcomes import Claimed, ClaimOutcome, Completed, Conflicted, Mismatched
from ..protocol.snapshots import Snapshot, decode_headers, encode_headers

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper

    from ..protocol.digests import Identity

Status = IdempotencyKey.Status


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """The wish to run something once.

    fingerprint: 32 bytes that stand for the payload, or None to compare nothing.
    ttl, wait: seconds.
    """

    identity: Identity
    fingerprint: bytes | None
    ttl: float
    wait: float = 0


@dataclass(frozen=True, slots=True)
class Row:
    """What the table holds under a claim's two hashes."""

    id: int
    scope: str
    operation: str
    key: str
    fingerprint: bytes | None
    status: str
    expired: bool
    status_code: int | None
    headers: str | None
    body: bytes | None


class Held(Exception):
    """Somebody else is running this key right now. Stays inside the stores."""


class Store(ABC):
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
    by_id: ClassVar[str] = ""
    """SQL that makes an UPDATE find its row by id, where the optimizer may choose, and lock, more than that row."""

    def __init__(self, alias: str) -> None:
        self.alias = alias

    # --- what the engine calls ---------------------------------------------------------------------------

    def claim(self, claim: Claim) -> ClaimOutcome:
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
                    return _judge(row, claim)
                if (attempt := self._take_over(row.id, claim)) is not None:
                    return Claimed(id=row.id, attempt=attempt)
        except Held:
            pass
        return Conflicted()

    def complete(self, claimed: Claimed, snapshot: Snapshot) -> None:
        """Keep the result with the claim. Raises `ClaimLost` if the claimed row is gone."""
        self._write(
            self._sql.complete,
            [
                Status.COMPLETED.value,
                snapshot.status_code,
                encode_headers(snapshot.headers),
                snapshot.body,
                claimed.id,
            ],
        )

    def release(self, claimed: Claimed) -> None:
        """Free the key, as if it had never been seen. Raises `ClaimLost` if the claimed row is gone."""
        self._write(self._sql.release, [claimed.id])

    def is_broken(self) -> bool:
        """Has the current transaction lost its writes, so that it can only be rolled back?"""
        return self.connection.needs_rollback or self.connection.closed_in_transaction

    @abstractmethod
    def may_repeat(self, error: DatabaseError) -> bool:
        """Does this error of a claim go away in a fresh transaction (deadlock, serialization failure)?"""

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
        with self._cursor() as cursor:
            # The empty list: parameter substitution turns the doubled percent signs of SQLite's clock into single ones.
            cursor.execute(f"SELECT count(*) FROM {self._sql.table} WHERE {self._sql.are_expired}", [])
            return int(cursor.fetchone()[0])

    # --- what a database brings ----------------------------------------------------------------------------

    @abstractmethod
    def _insert(self, claim: Claim) -> int | None:
        """Insert the row; its id, or None if the key is taken or being taken."""

    @abstractmethod
    def _read(self, claim: Claim) -> Row | None:
        """The committed row; None if it is gone. Raises `Held` if somebody else is at work on it."""

    @abstractmethod
    def _take_over(self, row_id: int, claim: Claim) -> int | None:
        """Make an expired row ours: the new attempt, or None if it is not expired any more."""

    # --- shared ----------------------------------------------------------------------------------------------

    @property
    def connection(self) -> BaseDatabaseWrapper:
        return connections[self.alias]

    @cached_property
    def _sql(self) -> Statements:
        return Statements(self)

    def _cursor(self) -> CursorWrapper:
        return self.connection.cursor()

    def _write(self, sql: str, params: list[Any]) -> None:
        with self._cursor() as cursor:
            cursor.execute(sql, params)
            if cursor.rowcount != 1:
                raise ClaimLost(
                    "The row of this request's idempotency key is gone: the view deleted it. "
                    "Nothing was committed. Leave the key table to the package."
                )

    def _new_row(self, claim: Claim) -> list[Any]:
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
        ]

    def _fetch(self, sql: str, params: list[Any]) -> Row | None:
        with self._cursor() as cursor:
            cursor.execute(sql, params)
            values = cursor.fetchone()
        return None if values is None else _row(values)


class Statements:
    """The SQL of one store, made once from the model's metadata."""

    def __init__(self, store: Store) -> None:
        quote = store.connection.ops.quote_name
        column = {f.name: quote(str(f.column)) for f in IdempotencyKey._meta.concrete_fields}
        clock, later = store.clock, store.later
        self.table = quote(IdempotencyKey._meta.db_table)
        self.column = column
        self.columns = ", ".join(
            column[name]
            for name in (
                *("key_hash", "scope_hash", "scope", "operation", "key", "fingerprint", "status"),
                *("attempt", "created_at", "expires_at"),
            )
        )
        finished = f"{column['status']} <> '{Status.IN_PROGRESS.value}'"
        self.is_expired = f"{column['expires_at']} <= {clock} AND {finished}"
        self.are_expired = f"{column['expires_at']} <= {store.clock_once or clock} AND {finished}"
        self.row = ", ".join(
            (
                *(column[n] for n in ("id", "scope", "operation", "key", "fingerprint", "status")),
                self.is_expired,
                *(column[n] for n in ("status_code", "headers", "body")),
            )
        )
        self.mine = f"{column['key_hash']} = %s AND {column['scope_hash']} = %s"
        self.complete = (
            f"UPDATE {self.table} SET {column['status']} = %s, {column['status_code']} = %s, "
            f"{column['headers']} = %s, {column['body']} = %s, {column['completed_at']} = {clock} "
            f"WHERE {column['id']} = %s"
        )
        self.release = f"DELETE FROM {self.table} WHERE {column['id']} = %s"
        self.take_over = (
            f"UPDATE {self.table} {store.by_id} SET "
            f"{column['fingerprint']} = %s, {column['status']} = '{Status.IN_PROGRESS.value}', "
            f"{column['attempt']} = {column['attempt']} + 1, {column['status_code']} = NULL, "
            f"{column['headers']} = NULL, {column['body']} = NULL, {column['last_error']} = NULL, "
            f"{column['locked_until']} = NULL, {column['completed_at']} = NULL, "
            f"{column['created_at']} = {clock}, {column['expires_at']} = {later} "
            f"WHERE {column['id']} = %s AND {self.is_expired}"
        )


def _row(values: Any) -> Row:
    id_, scope, operation, key, fingerprint, status, expired, status_code, headers, body = values
    return Row(
        id=id_,
        scope=scope,
        operation=operation,
        key=key,
        fingerprint=None if fingerprint is None else bytes(fingerprint),
        status=status,
        expired=bool(expired),
        status_code=status_code,
        headers=headers,
        body=None if body is None else bytes(body),
    )


def _judge(row: Row, claim: Claim) -> ClaimOutcome:
    """What a living row means for a duplicate: its status first."""
    identity = claim.identity
    if (row.scope, row.operation, row.key) != (identity.scope, identity.operation, identity.key):
        # 128 equal bits of SHA-256: fail closed, show nothing of the other row.
        return Mismatched()
    if row.status == Status.IN_PROGRESS:
        return Conflicted()
    if None not in (row.fingerprint, claim.fingerprint) and row.fingerprint != claim.fingerprint:
        return Mismatched()
    if row.status_code is None:
        raise RuntimeError(f"Bug: idempotency key row {row.id} is {row.status!r} without a result.")
    return Completed(snapshot=Snapshot(status_code=row.status_code, headers=decode_headers(row.headers), body=row.body))
