"""The contract of a store: claim a key, and keep or give up the claim.

A store works on the connection of its alias, inside the transaction that its caller has opened. What the store writes
commits or rolls back together with the business write. All times come from the database's clock. No claim waits for
another request: `execution` asks again, with no transaction open in between.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from django.db import DEFAULT_DB_ALIAS, DatabaseError, connections, router
from django.db.models import BooleanField, ExpressionWrapper, F

from ...exceptions import ClaimLost, IdempotencyConfigurationError
from ...models import IdempotencyKey
from ..protocol.decision import Resume, Status, StoredKey, TakeOver, decide, resumed
from ..protocol.outcomes import Claimed, ClaimOutcome, ClaimRequest, Conflicted, InDoubt, Known, TooOld
from .journal import Journal, locked
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
"""What a takeover deletes of the expired key."""
LONG_AGO = "1970-01-02"
DELETE_BY_IDS = {
    # In a partitioned table only a sequence makes ids unique.
    "postgresql": "DELETE FROM {table} WHERE {column} = ANY(translate(%(ids)s, '[]', '{{}}')::bigint[]) AND {still}",
    # Row by row through the index. For an IN list the optimizer may scan the table, and would wait for every row that
    # another transaction holds.
    "mysql": "DELETE {table} FROM JSON_TABLE(%(ids)s, '$[*]' COLUMNS (purged_id BIGINT PATH '$')) AS purged "
    "STRAIGHT_JOIN {table} ON {table}.{column} = purged.purged_id",
    "sqlite": "DELETE FROM {table} WHERE {column} IN (SELECT value FROM json_each(%(ids)s))",
}
"""Deletes the rows whose column is in a JSON list. Where an id can be of several rows: those {still} to be deleted."""


class KeyLocked(Exception):
    """Another transaction is working on this key right now. Never leaves the stores."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningTransaction:
    """One open transaction that holds keys of atomic mode, most often one request.

    Attributes:
        pid: of the server process, as `pg_terminate_backend` takes it.
        application_name: which of your services, as its connection says.
        keys: how many keys the transaction holds.
        seconds: since the transaction began. None if your role may not see this; members of `pg_read_all_stats` may.
        state: "active", or "idle in transaction" while the server waits for the worker. None as for `seconds`.
    """

    pid: int
    application_name: str | None
    keys: int
    seconds: float | None
    state: str | None


class Store(ABC):
    """The key table of one database alias. Threads may share the object: it keeps nothing but its SQL."""

    repeatable: ClassVar[frozenset[object]] = frozenset()
    rolled_back: ClassVar[frozenset[object]] = frozenset()
    busy: ClassVar[frozenset[object]] = frozenset()
    unmigrated: ClassVar[frozenset[object]]
    """The codes of errors, see `code`.

    repeatable: of a claim. It may succeed in a new transaction: a deadlock, a serialization failure.
    rolled_back: the database has rolled the whole transaction back in favour of another one.
    busy: of a claim. The database did not answer in time.
    unmigrated: a table or a column is missing.
    """

    def __init__(self, alias: str) -> None:
        self.alias, self.journal, self._sql = alias, Journal(alias), Queries(alias)

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

    @abstractmethod
    def code(self, error: DatabaseError) -> object:
        """What the database calls this error."""

    def check(self) -> Iterable[CheckMessage]:
        """System checks that query the database: whether its set-up can keep the promises."""
        return check_tables(self.connection)

    def explain(self, error: DatabaseError) -> None:
        """Raise `IdempotencyConfigurationError` if this error of a query of ours means a missing migration."""
        if self.code(error) not in self.unmigrated:
            return
        routed = router.allow_migrate_model(self.alias, IdempotencyKey)
        raise IdempotencyConfigurationError(
            f"database {self.alias!r} has no up-to-date table {IdempotencyKey._meta.db_table!r}. "
            + ("" if routed else "DATABASE_ROUTERS keep it out: let allow_migrate() return True for it there. ")
            + f"Run: python manage.py migrate{'' if self.alias == DEFAULT_DB_ALIAS else f' --database {self.alias}'}"
        ) from error

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

    def look(self, wanted: ClaimRequest) -> Known:
        """The answer that a duplicate of this request would get now. Claims nothing and locks nothing."""
        stored = self._stored(self._sql.look, wanted)
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
        last: nothing but the end of the caller's `atomic()` follows. So the store may send the COMMIT in one message
            with the statement, and then errors of the COMMIT are raised here.
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
        write("complete", values)

    def release(self, claimed: Claimed) -> None:
        """Free the key, as if it had never been seen. Raises `ClaimLost` if the row is not the claim's any more.

        The last statement of the caller's `atomic()`: the store may send the COMMIT with the statement, as `complete`
        does with `last=True`.
        """
        self._write_last("release", values_of_claim(claimed))

    def purge(self, batch_size: int, not_before: Any = None) -> tuple[int, Any]:
        """Delete up to `batch_size` expired keys in the current transaction.

        Returns the number of deleted keys, and the `not_before` for the next batch. With it, the next batch starts
        where this one has stopped, and need not step over the rows that were deleted before: an old snapshot elsewhere
        may keep their entries in the index for hours.
        """
        sql, connection = self._sql, self.connection
        id_, expires_at, step_key = sql.k["id"], sql.k["expires_at"], connection.ops.quote_name("key_id")
        mysql, skips = connection.vendor == "mysql", connection.features.has_select_for_update_skip_locked
        rows = rows_of(
            connection,
            # MySQL's optimizer may read the whole table, and lock every row of it.
            f"SELECT {id_}, {expires_at} FROM {sql.table} {'FORCE INDEX (idempotency_expires_idx)' if mysql else ''} "
            f"WHERE {sql.expired} AND {expires_at} >= %(not_before)s ORDER BY {expires_at} LIMIT %(limit)s "
            + (connection.ops.for_update_sql(skip_locked=True) if skips else ""),
            {"not_before": not_before or LONG_AGO, "limit": batch_size},
        )
        ids = {"ids": json.dumps([row[0] for row in rows])}
        for table, column, still in ((sql.steps, step_key, "TRUE"), (sql.table, id_, sql.expired)) if rows else ():
            self._execute(DELETE_BY_IDS[connection.vendor].format(table=table, column=column, still=still), ids)
        return len(rows), rows[-1][1] if rows else not_before

    def running(self) -> list[RunningTransaction] | None:
        """The open transactions that hold keys of atomic mode, the oldest first. None: this database does not tell."""
        return None

    # --- what a database brings

    @abstractmethod
    def _insert(self, wanted: ClaimRequest) -> int | None:
        """Insert the row. Its id, or None if the key is stored already or another transaction is inserting it."""

    def _read(self, wanted: ClaimRequest) -> StoredKey | None:
        """The committed row, or None if there is none. Raises `KeyLocked` if another transaction works on it."""
        return self._stored(self._sql.look, wanted)

    def _locked(self, wanted: ClaimRequest) -> ClaimOutcome:
        """What a request is told while another transaction works on its key."""
        return Conflicted()

    def _write(self, name: str, values: Values) -> None:
        """Change the own claim by this statement of `Queries`. Raises `ClaimLost`."""
        if self._execute(getattr(self._sql, name), values) != 1:
            raise claim_lost()

    def _write_last(self, name: str, values: Values) -> None:
        """Like `_write`, but the store may send the COMMIT in one message with the statement."""
        self._write(name, values)

    # --- shared

    def _claim_once(self, wanted: ClaimRequest) -> ClaimOutcome | None:
        """One round. None: another transaction has changed or deleted the row in between."""
        if not wanted.known_only and (row_id := self._insert(wanted)) is not None:
            return new_claim(row_id, wanted)
        stored = self._read(wanted)
        if stored is None:
            return TooOld() if wanted.known_only else None
        match decide(stored, wanted):
            case TakeOver():
                return self._take_over(stored, wanted)
            case Resume():
                return self._resume(stored, wanted)
            case decision:
                return decision

    def _take_over(self, stored: StoredKey, wanted: ClaimRequest) -> Claimed | None:
        """Claim an expired row as a new key, unless another request was faster."""
        row, expired, _ = self._lock(stored, wanted)
        if not expired:
            return None
        self._next_attempt(row, wanted, fingerprint=wanted.fingerprint, created_at=Clock(), **dict.fromkeys(EMPTIED))
        self.journal.delete_steps(stored.id)
        return new_claim(stored.id, wanted, attempt=stored.attempt + 1)

    def _resume(self, stored: StoredKey, wanted: ClaimRequest) -> Claimed | Conflicted | InDoubt:
        """Begin the next attempt of a failed or abandoned key, unless one of its calls is in doubt."""
        row, _, lapsed = self._lock(stored, wanted)
        if lapsed is None or not (stored.status is Status.FAILED or lapsed):
            return Conflicted()
        if wanted.lease is None and self.journal.has_steps(stored.id):
            # The view was leased once. Work in atomic mode would repeat the finished steps, which it does not know.
            return InDoubt(attempt=stored.attempt, resource=stored.resource)
        outcome = resumed(stored, wanted, *self.journal.doubts(stored.id))
        if isinstance(outcome, Claimed):
            self._next_attempt(row, wanted)
        return outcome

    def _lock(self, stored: StoredKey, wanted: ClaimRequest) -> tuple[QuerySet[IdempotencyKey], Any, Any]:
        """Lock the row if nothing has changed since it was read: the row, whether it has expired, and has lapsed.

        Of several requests, one gets the lock. None and None for the others. No time is in the condition: in a small
        table, the optimizer could choose the index on `expires_at`, and lock all of its range.
        """
        # An id alone could be another tenant's, in another schema.
        identity = {"key_hash": wanted.identity.key_hash, "scope_hash": wanted.identity.scope_hash}
        row = IdempotencyKey.objects.using(self.alias).filter(**identity, pk=stored.id)
        states = (ExpressionWrapper(state, BooleanField()) for state in (EXPIRED.condition, LAPSED))
        same = row.filter(attempt=stored.attempt, status=stored.status.value)
        found = list(locked(same, skip=True).values_list(*states))
        return row, *(found[0] if found else (None, None))

    def _next_attempt(self, row: QuerySet[IdempotencyKey], wanted: ClaimRequest, **changes: Any) -> None:
        """Begin the next attempt of a locked row."""
        row.update(
            status=Status.IN_PROGRESS.value,
            attempt=F("attempt") + 1,
            last_error=None,
            updated_at=Clock(),
            policy=wanted.policy,
            worker=values_of(wanted)["worker"],
            expires_at=Clock(plus=wanted.ttl),
            locked_until=None if wanted.lease is None else Clock(plus=wanted.lease),
            **changes,
        )

    def _fetch(self, sql: str, values: Any = None) -> Any:
        """The first row, or None."""
        with self.connection.cursor() as cursor:
            cursor.execute(sql, values or {})  # without values, the doubled percent signs of a clock would stay
            return cursor.fetchone()

    def _execute(self, sql: str, values: Values) -> int:
        """How many rows the statement has changed."""
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
        "The row of this request's idempotency key is not there any more: the view has caught a deadlock or a lock "
        "timeout, deleted the row, or left its schema or database (search_path, USE). This transaction is rolled back. "
        "Let such errors propagate, leave the key table alone, and end the view in the schema in which it began."
    )
