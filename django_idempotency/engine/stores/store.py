"""This module has the base class of all stores. A store claims a key, and completes or releases the claim.

A store uses the database connection of its alias, inside the transaction that the caller has opened. So the writes of
the store and the writes of the view are committed together, or are rolled back together. All times come from the
database's clock. Usually, a claim does not wait for another request. If another request has the key, the code in
`execution/claiming.py` can repeat the claim after a pause. During this pause, no transaction is open.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

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

if TYPE_CHECKING:
    from django.core.checks import CheckMessage
    from django.db.backends.base.base import BaseDatabaseWrapper
    from django.db.models import QuerySet

    from ..protocol.outcomes import Resource, Snapshot

EMPTIED = ("status_code", "headers", "body", "completed_at", "resource_type", "resource_id", "decisions")
"""A takeover of an expired key sets these columns to NULL."""
REFERENCE = ("id", "key_hash", "scope_hash")
"""The columns by which a row is found, locked and deleted."""
LONG_AGO = "1970-01-02"
SAME = "{table}.{id} = gone.i AND {table}.{key_hash} = gone.k AND {table}.{scope_hash} = gone.s"
DELETE = {
    "postgresql": "DELETE FROM {table} USING json_to_recordset(%(gone)s::json) AS gone(i bigint, k bigint, s bigint) "
    f"WHERE {SAME}",
    # This DELETE uses a join, so that MySQL finds each row through the index. With an IN list, MySQL's optimizer
    # sometimes reads the whole table. Then the DELETE would wait for all rows that other transactions have locked.
    "mysql": "DELETE {table} FROM JSON_TABLE(%(gone)s, '$[*]' COLUMNS (i BIGINT PATH '$.i', k BIGINT PATH '$.k', "
    f"s BIGINT PATH '$.s')) AS gone STRAIGHT_JOIN {{table}} ON {SAME}",
    "sqlite": "DELETE FROM {table} WHERE ({id}, {key_hash}, {scope_hash}) IN "
    # Django 5.2 allows SQLite 3.31, which has no operator for this.
    "(SELECT json_extract(value, '$.i'), json_extract(value, '$.k'), json_extract(value, '$.s') "
    "FROM json_each(%(gone)s))",
}
"""SQL for each kind of database that deletes what belongs to a JSON list of keys. Two keys can share an id, in two
partitions for example, so their hashes are compared as well.
"""


class KeyLocked(Exception):
    """A store raises `KeyLocked` if another transaction is working on the key. The callers of a store never get this
    exception, because the store catches it.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningTransaction:
    """A `RunningTransaction` object describes an open transaction that has claimed keys in atomic mode.

    Usually one transaction belongs to one request.

    Attributes:
        pid: the id of the server process, for `pg_terminate_backend`.
        application_name: the name that your service has set on its connection.
        keys: how many keys the transaction has claimed.
        seconds: the transaction's age, or None if your role is not in `pg_read_all_stats` and cannot see it.
        state: "active", or "idle in transaction" while the server waits for the worker, or None, see `seconds`.
    """

    pid: int
    application_name: str | None
    keys: int
    seconds: float | None
    state: str | None


class Store(ABC):
    """A store reads and writes the key table of one database alias.

    Several threads can use the same store, because a store contains no data about a single request.
    """

    repeatable: ClassVar[frozenset[object]] = frozenset()
    rolled_back: ClassVar[frozenset[object]] = frozenset()
    busy: ClassVar[frozenset[object]] = frozenset()
    lost: ClassVar[frozenset[object]] = frozenset()
    down: ClassVar[frozenset[object]]
    unmigrated: ClassVar[frozenset[object]]
    """The error codes of the database, as `code` returns them.

    repeatable: errors of a claim that can succeed in a new transaction, such as a deadlock or a serialization failure.
    busy: errors of a claim for which the database did not answer in time.
    lost: errors of a completion that the connection could not make; a retry can.
    down: errors of a claim whose database cannot be reached, has no connection left or is read-only.
    unmigrated: a table or a column is missing.
    """

    def __init__(self, alias: str) -> None:
        self.alias, self.journal, self._sql = alias, Journal(alias), Queries(alias)

    @property
    def connection(self) -> BaseDatabaseWrapper:
        """Return this thread's connection."""
        return connections[self.alias]

    def is_broken(self, connection: BaseDatabaseWrapper) -> bool:
        """Return whether Django cannot commit the current transaction any more."""
        return connection.get_rollback() or connection.closed_in_transaction

    def has_ended(self, connection: BaseDatabaseWrapper, claimed: Claimed) -> bool:
        """Return True if the database has ended the transaction, but Django has not noticed the end.

        Without an open transaction, the database commits each statement separately.

        Args:
            claimed: the claim that was made at the beginning of the transaction.
        """
        return self.has_no_transaction(connection)

    @abstractmethod
    def has_no_transaction(self, connection: BaseDatabaseWrapper) -> bool:
        """Return True if Django believes that a transaction is open, but the database driver has no open transaction.

        This method sends no query to the database server.
        """

    def has_begun(self, connection: BaseDatabaseWrapper) -> bool:
        """Return True if a transaction is open without Django's knowledge, for example after a raw BEGIN."""
        return False

    @abstractmethod
    def code(self, error: Error) -> object:
        """Return the database's own code for this error, for example an SQLSTATE."""

    def check(self) -> Iterable[CheckMessage]:
        """Run the system checks that query the database.

        These checks find mistakes in the set-up of the database, such as a wrong storage engine.
        """
        return check_tables(self.connection)

    def explain(self, error: Error) -> None:
        """Raise `IdempotencyConfigurationError` if this database error means that a migration is missing."""
        if self.code(error) not in self.unmigrated:
            return
        routed = router.allow_migrate_model(self.alias, IdempotencyKey)
        raise IdempotencyConfigurationError(
            f"database {self.alias!r} has no up-to-date table {IdempotencyKey._meta.db_table!r}. "
            + ("" if routed else "DATABASE_ROUTERS keep it out: let allow_migrate() return True for it there. ")
            + f"Run: python manage.py migrate{'' if self.alias == DEFAULT_DB_ALIAS else f' --database {self.alias}'}. "
            "If it has nothing to apply, the table is of 0.3.0: docs/versions.md upgrades it. To drop it would run its "
            "keys again."
        ) from error

    # --- public methods

    def claim(self, wanted: ClaimRequest) -> ClaimOutcome:
        """Claim a key, and return a `Claimed` object. If the key cannot be claimed, return the reason, for example
        `Conflicted`.

        The claim must be the first statement of a transaction.
        """
        try:
            # Another transaction can change or delete the row of the key during the first try. Then the claim needs a
            # second try.
            for _ in range(2):
                if (outcome := self._claim_once(wanted)) is not None:
                    return outcome
        except KeyLocked:
            return self._locked(wanted)
        return Conflicted()

    def look(self, wanted: ClaimRequest) -> Known:
        """Return the outcome that a duplicate of this request would get now.

        This method does not claim the key, and does not lock the row.
        """
        stored = self._stored(self._sql.look, wanted)
        outcome = Conflicted() if stored is None else decide(stored, wanted)
        return Conflicted() if isinstance(outcome, TakeOver | Resume) else outcome

    def complete(
        self,
        claimed: Claimed,
        snapshot: Snapshot,
        *,
        ttl: float | None = None,
        resource: Resource | None = None,
        last: bool = False,
        settled: bool = False,
    ) -> None:
        """Store the response in the row of the claim. Raises `ClaimLost` if the row does not belong to the claim any
        more.

        If the argument `last` is True, a store can send COMMIT together with the statement. So this method can also
        raise an error that comes from the COMMIT.

        Args:
            ttl: the number of seconds for which the response is kept from now on. None keeps the time from the claim.
            resource: the type and id of the object that the operation is about. None keeps the stored resource.
            last: whether this is the last statement of the caller's `atomic()`. Only without `ttl`.
            settled: also raise `ClaimLost` if a step of the key has no result. Only with `ttl`.
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
        write = self._write_last if last else self._write
        kept = "complete_settled" if settled else "complete_and_keep"
        write("complete" if ttl is None else kept, values)

    def release(self, claimed: Claimed) -> None:
        """Delete the row of this claim. Then the next request with this key is treated as a new request.

        Raises `ClaimLost` if the row does not belong to the claim any more. The DELETE must be the last statement of
        the caller's `atomic()` block, because a store can send the DELETE and COMMIT in one message.
        """
        self._write_last("release", values_of_claim(claimed))

    def purge(self, batch_size: int, not_before: Any = None) -> tuple[int, Any]:
        """Delete up to `batch_size` expired keys in the current transaction.

        The method returns two values: the number of deleted keys, and the argument `not_before` for the next call. With
        this argument, the next call does not read the index entries of deleted rows again. If a long transaction has an
        old snapshot, the database keeps these index entries for hours.
        """
        sql, connection = self._sql, self.connection
        columns = [sql.k[name] for name in (*REFERENCE, "policy", "expires_at")]
        mysql, skips = connection.vendor == "mysql", connection.features.has_select_for_update_skip_locked
        rows = rows_of(
            connection,
            # Without FORCE INDEX, MySQL's optimizer sometimes reads the whole table, and locks every row of the table.
            f"SELECT {', '.join(columns)} FROM {sql.table} {'FORCE INDEX (idempotency_expires_idx)' if mysql else ''} "
            f"WHERE {sql.expired} AND {columns[-1]} >= %(not_before)s ORDER BY {columns[-1]} LIMIT %(limit)s "
            + (connection.ops.for_update_sql(skip_locked=True) if skips else ""),
            {"not_before": not_before or LONG_AGO, "limit": batch_size},
        )
        self.delete([row[:4] for row in rows])
        return len(rows), rows[-1][-1] if rows else not_before

    def delete(self, locked_keys: Sequence[Sequence[Any]]) -> int:
        """Delete locked keys with their steps, and return how many keys were deleted.

        Each key is a tuple of id, both hashes and policy. A key without a policy has no steps.
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

    def running(self) -> list[RunningTransaction] | None:
        """Return the open transactions that have claimed keys in atomic mode. The oldest transaction comes first.

        The result is None if the store cannot find out which transactions are open.
        """
        return None

    def elsewhere(self) -> list[str]:
        """Return the other schemas with a key table, if this connection sees the one that all tenants share."""
        return []

    # --- database-specific methods

    @abstractmethod
    def _insert(self, wanted: ClaimRequest) -> int | None:
        """Insert a row for the key, and return the id of the row.

        The result is None if the key is stored already, or if another request is inserting the key at the same time.
        """

    def _read(self, wanted: ClaimRequest) -> StoredKey | None:
        """Return the committed row of the key, or None if the key has no committed row.

        Raises `KeyLocked` if another transaction works on the row.
        """
        return self._stored(self._sql.look, wanted)

    def _locked(self, wanted: ClaimRequest) -> ClaimOutcome:
        """Another transaction is working on the key. Return the outcome of the claim in this case."""
        return Conflicted()

    def _write(self, name: str, values: Values) -> None:
        """Run an SQL statement that changes the claimed row. The argument `name` is the name of an attribute of the
        class `Queries`, for example "complete".

        Raises `ClaimLost` if the statement does not change exactly one row.
        """
        if self._execute(getattr(self._sql, name), values) != 1:
            raise claim_lost()

    def _write_last(self, name: str, values: Values) -> None:
        """Do the same as the method `_write`. A subclass can send COMMIT together with the statement."""
        self._write(name, values)

    # --- shared methods

    def _claim_once(self, wanted: ClaimRequest) -> ClaimOutcome | None:
        """Try to claim the key once. If this fails, do not try again.

        The method returns None if another transaction has changed or deleted the row during the claim.
        """
        if not wanted.known_only and (row_id := self._insert(wanted)) is not None:
            claimed = new_claim(row_id, wanted)
            if wanted.late is None:
                return claimed
            return self._unless(wanted.late, claimed, self._fetch(f"SELECT {self._sql.seconds_since_1970}")[0])
        stored = self._read(wanted)
        if stored is None:
            return TooOld() if wanted.known_only else None
        match decide(stored, wanted):
            case TakeOver():
                return self._take_over(stored, wanted)
            case Resume():
                return self._resume(stored, wanted)
            case outcome:
                return outcome

    def _unless(self, late: Callable[[float], bool], claimed: Claimed, now: str | float) -> Claimed | TooOld:
        """Return the claim of a new key, or free the key again if it is too old to be new."""
        if late(float(now)):
            self.release(claimed)
            return TooOld()
        return claimed

    def _take_over(self, stored: StoredKey, wanted: ClaimRequest) -> Claimed | None:
        """Claim an expired row for a new request. Return None if another request has already claimed the row."""
        row, expired, *_ = self._lock(stored, wanted)
        if not expired:
            return None
        anew = {"fingerprint": wanted.fingerprint, "created_at": Clock(), "unknown": 0, "effects": 0}
        self._next_attempt(row, wanted, **anew, **dict.fromkeys(EMPTIED))
        claim = new_claim(stored.id, wanted, attempt=stored.attempt + 1)
        steps_of(self.alias, claim).delete()
        return claim

    def _resume(self, stored: StoredKey, wanted: ClaimRequest) -> Claimed | Conflicted | InDoubt:
        """Begin the next attempt of a failed or abandoned key.

        The method returns `InDoubt` if the stored steps forbid the next attempt.
        """
        row, _, lapsed, unknown = self._lock(stored, wanted)
        if lapsed is None or not (stored.status is Status.FAILED or lapsed):
            return Conflicted()
        of = new_claim(stored.id, wanted)
        if wanted.lease is None and self.journal.has_steps(of):
            # An earlier attempt of this key ran in leased mode and has stored steps. An attempt in atomic mode ignores
            # the stored steps, so it would run these steps again.
            return InDoubt(attempt=stored.attempt, resource=stored.resource)
        outcome = resumed(stored, wanted, self.journal.doubts(of, wanted.keys_last) if unknown else ())
        if isinstance(outcome, Claimed):
            self._next_attempt(row, wanted)
        return outcome

    def _lock(self, stored: StoredKey, wanted: ClaimRequest) -> tuple[QuerySet[IdempotencyKey], Any, Any, Any]:
        """Lock the row, but only if its attempt number and its status are the same as in the argument `stored`.

        If several requests try to lock the row, only one of them gets it. Returns a query for the row, whether it has
        expired, whether its lease has expired, and how many of its steps have no result; without the lock, None for
        each of the three.

        The query that locks the row does not compare times. In a small table, a database could use the index on
        `expires_at` to compare times. Then the query would lock a whole range of this index.
        """
        # If each tenant has its own schema, two tenants can have rows with the same id. So the query also compares the
        # hashes.
        identity = {"key_hash": wanted.identity.key_hash, "scope_hash": wanted.identity.scope_hash}
        row = IdempotencyKey.objects.using(self.alias).filter(**identity, pk=stored.id)
        states = (ExpressionWrapper(state, BooleanField()) for state in (EXPIRED.condition, LAPSED))
        same = row.filter(attempt=stored.attempt, status=stored.status.value)
        found = list(locked(same, skip=True).values_list(*states, "unknown"))
        return row, *(found[0] if found else (None, None, None))

    def _next_attempt(self, row: QuerySet[IdempotencyKey], wanted: ClaimRequest, **changes: Any) -> None:
        """Begin the next attempt of a key with an UPDATE of the locked row."""
        row.update(
            status=Status.IN_PROGRESS.value,
            attempt=F("attempt") + 1,
            last_error=None,
            attention_at=None,
            updated_at=Clock(),
            policy=wanted.policy,
            worker=values_of(wanted)["worker"],
            expires_at=Clock(plus=wanted.ttl),
            locked_until=None if wanted.lease is None else Clock(plus=wanted.lease),
            **changes,
        )

    def _fetch(self, sql: str, values: Any = None) -> Any:
        """Run the SQL, and return the first row of the result. If the result has no row, return None."""
        with self.connection.cursor() as cursor:
            cursor.execute(sql, values or {})  # without a dict of values, `%%` in the SQL would not become `%`
            return cursor.fetchone()

    def _execute(self, sql: str, values: Values) -> int:
        """Run the statement, and return how many rows the statement has changed."""
        with self.connection.cursor() as cursor:
            cursor.execute(sql, values)
            return int(cursor.rowcount)

    def _stored(self, sql: str, wanted: ClaimRequest) -> StoredKey | None:
        row = self._fetch(sql, values_of(wanted))
        return None if row is None else as_stored_key(row)


def new_claim(row_id: int, wanted: ClaimRequest, attempt: int = 1) -> Claimed:
    of = wanted.identity
    return Claimed(
        key_hash=of.key_hash, scope_hash=of.scope_hash, id=row_id, attempt=attempt, fingerprint=wanted.fingerprint
    )


def claim_lost() -> ClaimLost:
    return ClaimLost(
        "The row of this request's idempotency key is not there any more: the view has sent a raw ROLLBACK, caught a "
        "deadlock or a lock timeout, deleted the row, or left its schema or database (search_path, USE). This "
        "transaction is rolled back. To roll back on purpose, call transaction.set_rollback(True). Let database errors "
        "propagate, leave the key table alone, and end the view in the schema in which it began."
    )
