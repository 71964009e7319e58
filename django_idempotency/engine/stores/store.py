"""The base class of all stores. A store claims a key, and completes or releases the claim.

A store uses its alias's connection, inside a transaction that the caller has opened, so everything that the store and
the view write is committed or rolled back together. All times come from the database's clock. A claim normally doesn't
wait for another request; instead, `execution/claiming.py` repeats the claim after a pause, during which no transaction
is open.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from django.db import DEFAULT_DB_ALIAS, Error, connections, router
from django.db.models import BooleanField, ExpressionWrapper, F

from ...exceptions import ClaimLost, IdempotencyConfigurationError
from ...models import IdempotencyKey
from ..protocol.outcomes import Claimed, ClaimOutcome, ClaimRequest, Conflicted, InDoubt, Known, TooOld
from ..protocol.stored_key import Resume, Status, StoredKey, TakeOver, decide, resumed
from .journal import Journal, locked, steps_of
from .queries import Queries, Values, as_stored_key, values_of, values_of_claim
from .sealing import seal_response
from .server_checks import check_tables, rows_of
from .states import EXPIRED, LAPSED, Clock
from .transactions import IDLE

if TYPE_CHECKING:
    from django.core.checks import CheckMessage
    from django.db.backends.base.base import BaseDatabaseWrapper
    from django.db.models import QuerySet

    from ..protocol.outcomes import Resource, Snapshot

T = TypeVar("T")
EMPTIED = ("status_code", "headers", "body", "completed_at", "resource_type", "resource_id", "decisions")
"""The columns that a takeover of an expired key sets to NULL."""
REFERENCE = ("id", "key_hash", "scope_hash")
"""The columns by which a row is found, locked and deleted."""
LONG_AGO = "1970-01-02"
SAME = "{table}.{id} = gone.i AND {table}.{key_hash} = gone.k AND {table}.{scope_hash} = gone.s"
DELETE = {
    "postgresql": "DELETE FROM {table} USING json_to_recordset(%(gone)s::json) AS gone(i bigint, k bigint, s bigint) "
    f"WHERE {SAME}",
    # This is a join, because with an IN list, MySQL may read the whole table and wait for every locked row in it.
    "mysql": "DELETE {table} FROM JSON_TABLE(%(gone)s, '$[*]' COLUMNS (i BIGINT PATH '$.i', k BIGINT PATH '$.k', "
    f"s BIGINT PATH '$.s')) AS gone STRAIGHT_JOIN {{table}} ON {SAME}",
    "sqlite": "DELETE FROM {table} WHERE ({id}, {key_hash}, {scope_hash}) IN "
    # Django 5.2 allows SQLite 3.31, which has no JSON operators.
    "(SELECT json_extract(value, '$.i'), json_extract(value, '$.k'), json_extract(value, '$.s') "
    "FROM json_each(%(gone)s))",
}
"""Deletes the rows of the keys in a JSON list. Ids alone are not enough, because two partitions may use the same id."""


class KeyLocked(Exception):
    """Another transaction is working on the key. The store catches this itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningTransaction:
    """An open transaction that has claimed atomic-mode keys, usually for a single request.

    Attributes:
        pid: the id of the server process, for `pg_terminate_backend`.
        application_name: the name that your service has set on its connection.
        keys: how many keys the transaction has claimed.
        seconds: the transaction's age, or None if your role is not in `pg_read_all_stats` and cannot see it.
        state: "active", "idle in transaction" while the server waits for the worker, or None if your role
            cannot see it.
    """

    pid: int
    application_name: str | None
    keys: int
    seconds: float | None
    state: str | None


class Store(ABC):
    """Reads and writes the key table of one database alias.

    It keeps no per-request state, so threads may share it.
    """

    journal_type: ClassVar[type[Journal]] = Journal
    repeatable: ClassVar[frozenset[object]] = frozenset()
    rolled_back: ClassVar[frozenset[object]] = frozenset()
    busy: ClassVar[frozenset[object]] = frozenset()
    lost: ClassVar[frozenset[object]] = frozenset()
    level_is_fixed: ClassVar[frozenset[object]] = frozenset()
    down: ClassVar[frozenset[object]]
    unmigrated: ClassVar[frozenset[object]]
    """The database's error codes, as `code` returns them.

    repeatable: a claim may succeed in a new transaction, for example after a deadlock or a serialization failure.
    rolled_back: the whole transaction has been rolled back, perhaps because a duplicate was faster.
    busy: the database did not answer a claim in time.
    lost: the connection could not complete the key, but a retry can.
    level_is_fixed: the work has tried to change the isolation level of the claim's transaction.
    down: the database can't be reached, has no connections left or is read-only, so it can't take claims.
    unmigrated: a table or a column is missing."""

    def __init__(self, alias: str) -> None:
        self.alias, self.journal, self._sql = alias, self.journal_type(alias), Queries(alias)

    @property
    def connection(self) -> BaseDatabaseWrapper:
        """This thread's connection."""
        return connections[self.alias]

    def is_broken(self, connection: BaseDatabaseWrapper) -> bool:
        """Whether the current transaction can no longer be committed."""
        return connection.get_rollback() or connection.closed_in_transaction

    def is_open(self, connection: BaseDatabaseWrapper) -> bool:
        """Whether a quick check of the connection shows that the claim's transaction is open and can be committed.

        If this returns False, `has_ended` and `is_broken` tell what has become of the transaction.
        """
        return False

    def has_ended(self, connection: BaseDatabaseWrapper, claimed: Claimed) -> bool:
        """Whether this claim's transaction has ended without Django noticing.

        From then on, the database commits each statement separately.
        """
        return self.has_no_transaction(connection)

    def has_no_transaction(self, connection: BaseDatabaseWrapper) -> bool:
        """Whether Django thinks that a transaction is open when the driver has none. Sends no query."""
        raw: Any = connection.connection
        return raw is not None and not connection.closed_in_transaction and IDLE[connection.vendor](raw)

    def has_begun(self, connection: BaseDatabaseWrapper) -> bool:
        """Whether there is an open transaction that Django doesn't know about, for example after a raw BEGIN."""
        return False

    @abstractmethod
    def code(self, error: Error) -> object:
        """Return the database's own code for an error, such as its SQLSTATE."""

    def check(self) -> Iterable[CheckMessage]:
        """Run the system checks that query the database about its setup, such as the storage engine."""
        return check_tables(self.connection)

    def explain(self, error: Error) -> None:
        """Raise `IdempotencyConfigurationError` if this error means that a migration is missing."""
        if self.code(error) not in self.unmigrated:
            return
        routed = router.allow_migrate_model(self.alias, IdempotencyKey)
        raise IdempotencyConfigurationError(
            f"database {self.alias!r} has no up-to-date table {IdempotencyKey._meta.db_table!r}. "
            + ("" if routed else "DATABASE_ROUTERS keep it out: let allow_migrate() return True for it there. ")
            + f"Run: python manage.py migrate{'' if self.alias == DEFAULT_DB_ALIAS else f' --database {self.alias}'}. "
            "If that has nothing to apply, the table is from 0.3.0: upgrade it as docs/upgrading.md shows. Dropping it "
            "would run its keys again."
        ) from error

    # --- public methods

    def claim(
        self, request: ClaimRequest, connection: BaseDatabaseWrapper | None = None, *, last: bool = False
    ) -> ClaimOutcome:
        """Claim the key, or return the reason why it can't be claimed.

        This must be the first statement of its transaction.

        Args:
            connection: this thread's connection, if the caller already has it.
            last: whether the claim is also the last statement. A store may then send COMMIT along with it.
        """
        try:
            # Try twice, in case another transaction has changed or deleted the row in the meantime.
            for _ in range(2):
                if (outcome := self._claim_once(request)) is not None:
                    return outcome
        except KeyLocked:
            return self._locked(request)
        return Conflicted()

    def unheard(self, request: ClaimRequest) -> Claimed | None:
        """Look for the claim of a new key after an exception has interrupted the wait for the database's answer.

        Returns the claim if it was committed, otherwise None. Only a store that sends COMMIT along with a claim has to
        look for such a claim.
        """
        return None

    def look(self, request: ClaimRequest) -> Known:
        """Return the outcome that a duplicate of this request would get now. Claims and locks nothing."""
        stored = self._stored(self._sql.look, request)
        outcome = Conflicted() if stored is None else decide(stored, request)
        return Conflicted() if isinstance(outcome, TakeOver | Resume) else outcome

    def complete(
        self,
        claimed: Claimed,
        snapshot: Snapshot,
        *,
        resource: Resource | None = None,
        connection: BaseDatabaseWrapper | None = None,
    ) -> None:
        """Store the response in the claim's row, until the expiry time that the claim has set.

        This must be the last statement of the caller's `atomic()` block, because a store may send COMMIT along with it.
        Errors from COMMIT may therefore be raised here.

        Args:
            resource: the type and id of the object that the operation is about. With None, a stored resource is kept.
            connection: this thread's connection, if the caller already has it.

        Raises:
            ClaimLost: the row no longer belongs to the claim.
        """
        self._write_last("complete", _completion(claimed, snapshot, resource), connection or self.connection)

    def complete_for(self, claimed: Claimed, snapshot: Snapshot, ttl: float) -> None:
        """Do the same as `complete`, but keep the response for `ttl` seconds from now on."""
        self._write_last("complete_for", {**_completion(claimed, snapshot), "ttl": ttl}, self.connection)

    def complete_settled(self, claimed: Claimed, snapshot: Snapshot, ttl: float) -> None:
        """Do the same as `complete_for`, but also raise `ClaimLost` if a step of the key has no result."""
        self._write_last("complete_settled", {**_completion(claimed, snapshot), "ttl": ttl}, self.connection)

    def release(self, claimed: Claimed) -> None:
        """Delete this claim's row, so that the next request with this key counts as new.

        This must be the last statement of the caller's `atomic()` block, because a store may send COMMIT along with it.

        Raises:
            ClaimLost: the row no longer belongs to the claim.
        """
        self._write_last("release", values_of_claim(claimed), self.connection)

    def purge(self, batch_size: int, not_before: Any = None) -> tuple[int, Any]:
        """Delete up to `batch_size` expired keys in the current transaction.

        Returns how many keys were deleted, and the `not_before` to pass next time. With this `not_before`, the next
        batch skips the index entries of deleted rows. These entries can stay for hours if a long transaction holds an
        old snapshot.
        """
        sql, connection = self._sql, self.connection
        columns = [sql.k[name] for name in (*REFERENCE, "policy", "expires_at")]
        mysql, skips = connection.vendor == "mysql", connection.features.has_select_for_update_skip_locked
        rows = rows_of(
            connection,
            # Without FORCE INDEX, MySQL may read the whole table and lock every row.
            f"SELECT {', '.join(columns)} FROM {sql.table} {'FORCE INDEX (idempotency_expires_idx)' if mysql else ''} "
            f"WHERE {sql.expired} AND {columns[-1]} >= %(not_before)s ORDER BY {columns[-1]} LIMIT %(limit)s "
            + (connection.ops.for_update_sql(skip_locked=True) if skips else ""),
            {"not_before": not_before or LONG_AGO, "limit": batch_size},
        )
        self.delete([row[:4] for row in rows])
        return len(rows), rows[-1][-1] if rows else not_before

    def delete(self, locked_keys: Sequence[Sequence[Any]]) -> int:
        """Delete locked keys with their steps, and return the number of keys.

        Each key is given as a tuple of its id, both hashes and its policy. A key without a policy has no steps.
        """
        leased = [key for key in locked_keys if key[3] is not None]
        self._delete(self._sql.steps, self._sql.step_key, leased)
        return self._delete(self._sql.table, self._sql.k["id"], locked_keys)

    def _delete(self, table: str, id_: str, keys: Sequence[Sequence[Any]]) -> int:
        if not keys:
            return 0
        names = {name: self._sql.k[name] for name in REFERENCE} | {"table": table, "id": id_}
        gone = json.dumps([dict(zip("iks", key[:3], strict=True)) for key in keys])
        return self._execute(DELETE[self.connection.vendor].format(**names), {"gone": gone})

    def read(self, seconds: float, work: Callable[[], T]) -> T:
        """Do the work, and limit each of its reads to `seconds`, including the wait for locks.

        SQLite's readers wait only as long as the connection's `timeout`.
        """
        return work()

    def running(self) -> list[RunningTransaction] | None:
        """Return the open transactions that hold atomic-mode keys, oldest first, or None if the store can't tell."""
        return None

    def elsewhere(self) -> list[str]:
        """Return the other schemas that have a key table, if this connection uses the schema that all tenants share."""
        return []

    def schemas(self) -> list[str]:
        """Return the schemas that have a key table and that this connection may use."""
        return []

    # --- database-specific methods

    @abstractmethod
    def _insert(self, request: ClaimRequest) -> int | Known | None:
        """Insert a row and return its id, or None if the key is already stored or another request is inserting it.

        A store whose INSERT also reads the stored row may return a duplicate's outcome instead.
        """

    def _read(self, request: ClaimRequest) -> StoredKey | None:
        """Return the key's committed row, if there is one.

        Raises `KeyLocked` if another transaction is working on it.
        """
        return self._stored(self._sql.look, request)

    def _locked(self, request: ClaimRequest) -> ClaimOutcome:
        """Return the outcome of a claim whose key another transaction is working on."""
        return Conflicted()

    def _write(self, name: str, values: Values) -> None:
        """Run the `Queries` statement with this name. Raises `ClaimLost` unless it changes exactly one row."""
        if self._execute(getattr(self._sql, name), values) != 1:
            raise claim_lost()

    def _write_last(self, name: str, values: Values, connection: BaseDatabaseWrapper) -> None:
        """Do the same as `_write`, except that a subclass may send COMMIT along with the statement."""
        self._write(name, values)

    # --- shared methods

    def _claim_once(self, request: ClaimRequest) -> ClaimOutcome | None:
        """Try once to claim the key. Return None if another transaction has since changed or deleted its row."""
        if not request.known_only and (answer := self._insert(request)) is not None:
            if not isinstance(answer, int):
                return answer
            claimed = new_claim(answer, request)
            if request.late is None:
                return claimed
            return self._unless(request.late, claimed, self._fetch(f"SELECT {self._sql.seconds_since_1970}")[0])
        stored = self._read(request)
        if stored is None:
            return TooOld() if request.known_only else None
        match decide(stored, request):
            case TakeOver():
                return self._take_over(stored, request)
            case Resume():
                return self._resume(stored, request)
            case outcome:
                return outcome

    def _unless(self, late: Callable[[float], bool], claimed: Claimed, now: str | float) -> Claimed | TooOld:
        """Return a new key's claim. If the key is too old to be accepted as new, free it and return `TooOld`."""
        if late(float(now)):
            self.release(claimed)
            return TooOld()
        return claimed

    def _take_over(self, stored: StoredKey, request: ClaimRequest) -> Claimed | None:
        """Claim an expired row for a new request, or return None if another request was faster."""
        row, expired, *_ = self._lock(stored, request)
        if not expired:
            return None
        anew = {"fingerprint": request.fingerprint, "created_at": Clock(), "unknown": 0, "effects": 0}
        self._next_attempt(row, request, **anew, **dict.fromkeys(EMPTIED))
        claim = new_claim(stored.id, request, attempt=stored.attempt + 1)
        steps_of(self.alias, claim).delete()
        return claim

    def _resume(self, stored: StoredKey, request: ClaimRequest) -> Claimed | Conflicted | InDoubt:
        """Begin the next attempt for a failed or abandoned key, unless its steps forbid it."""
        row, _, lapsed, unknown = self._lock(stored, request)
        if lapsed is None or not (stored.status is Status.FAILED or lapsed):
            return Conflicted()
        of = new_claim(stored.id, request)
        if (request.lease is None or request.observes) and self.journal.has_steps(of):
            # The work doesn't look at the steps. It would repeat their effects, and its result would hide the steps.
            return InDoubt(attempt=stored.attempt, resource=stored.resource)
        outcome = resumed(stored, request, self.journal.doubts(of, request.keys_last) if unknown else ())
        if isinstance(outcome, Claimed):
            self._next_attempt(row, request)
        return outcome

    def _lock(self, stored: StoredKey, request: ClaimRequest) -> tuple[QuerySet[IdempotencyKey], Any, Any, Any]:
        """Lock the row if its attempt and status still match `stored`.

        If several requests compete, one gets the lock. Returns four values: a query for the row, whether the row has
        expired, whether its lease has expired, and how many of its steps have no result. Without the lock, the last
        three are None.

        The condition doesn't compare timestamps. Otherwise, if the table is small, the database might use the index on
        `expires_at` and lock a whole range of it.
        """
        # The hashes are also compared, because two tenants' schemas may contain the same id.
        identity = {"key_hash": request.identity.key_hash, "scope_hash": request.identity.scope_hash}
        row = IdempotencyKey.objects.using(self.alias).filter(**identity, pk=stored.id)
        states = (ExpressionWrapper(state, BooleanField()) for state in (EXPIRED.condition, LAPSED))
        same = row.filter(attempt=stored.attempt, status=stored.status.value)
        rows = list(locked(same, skip=True).values_list(*states, "unknown"))
        return row, *(rows[0] if rows else (None, None, None))

    def _next_attempt(self, row: QuerySet[IdempotencyKey], request: ClaimRequest, **changes: Any) -> None:
        row.update(
            status=Status.IN_PROGRESS.value,
            attempt=F("attempt") + 1,
            last_error=None,
            attention_at=None,
            updated_at=Clock(),
            policy=request.policy,
            # A recovery doesn't replace the worker's name: a person wants to know whether the worker that made the
            # calls is dead.
            worker=F("worker") if request.known_only else values_of(request)["worker"],
            expires_at=Clock(plus=request.ttl),
            locked_until=None if request.lease is None else Clock(plus=request.lease),
            **changes,
        )

    def _fetch(self, sql: str, values: Any = None) -> Any:
        """Run a query, and return its first row or None."""
        with self.connection.cursor() as cursor:
            cursor.execute(sql, values or {})  # `%%` becomes `%` only if there are values
            return cursor.fetchone()

    def _execute(self, sql: str, values: Values) -> int:
        """Run a statement, and return how many rows it changed."""
        with self.connection.cursor() as cursor:
            cursor.execute(sql, values)
            return int(cursor.rowcount)

    def _stored(self, sql: str, request: ClaimRequest) -> StoredKey | None:
        row = self._fetch(sql, values_of(request))
        return None if row is None else as_stored_key(row)


def _completion(claimed: Claimed, snapshot: Snapshot, resource: Resource | None = None) -> Values:
    """The values of a statement that stores a response."""
    headers, body = seal_response(claimed, snapshot)
    type_, id_ = resource or (None, None)
    return {
        **values_of_claim(claimed),
        "status_code": snapshot.status_code,
        "headers": headers,
        "body": body,
        "resource_type": type_,
        "resource_id": id_,
    }


def new_claim(row_id: int, request: ClaimRequest, attempt: int = 1) -> Claimed:
    of = request.identity
    return Claimed(
        key_hash=of.key_hash, scope_hash=of.scope_hash, id=row_id, attempt=attempt, fingerprint=request.fingerprint
    )


def claim_lost() -> ClaimLost:
    return ClaimLost(
        "The row of this request's idempotency key is gone: the view sent a raw ROLLBACK, caught a deadlock or a lock "
        "timeout, deleted the row, or left its schema or database (search_path, USE). This "
        "transaction is rolled back. To roll back on purpose, call transaction.set_rollback(True). Let database errors "
        "propagate, leave the key table alone, and end the view in the schema in which it began."
    )
