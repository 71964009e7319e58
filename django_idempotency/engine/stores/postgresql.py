"""PostgreSQL: an advisory lock tells which key is in flight, without waiting. The unique constraint guards.

The transaction that runs the view holds the advisory lock on `scope_hash`, so no duplicate ever waits on the row.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any

from django.db import DatabaseError, DataError, OperationalError, transaction
from django.db.backends.utils import CursorWrapper

from ...exceptions import IdempotencyConfigurationError
from ..protocol.claims import ClaimRequest
from ..protocol.decision import Resume, Status, StoredKey, TakeOver, decide
from ..protocol.digests import Identity
from ..protocol.outcomes import Claimed, ClaimOutcome, Conflicted, Row
from . import round_trips
from .dialect import Dialect
from .postgresql_cleanup import PostgreSQLCleanup
from .queries import as_new_row, as_stored_key
from .running import RUNNING_SQL, RunningTransaction
from .store import KeyLocked, new_claim, row_of

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper

REPEATABLE = frozenset({"40001", "40P01"})
"""serialization_failure, deadlock_detected"""
GAVE_UP_WAITING = frozenset({"55P03", "57014"})
"""lock_not_available, query_canceled (the project's own statement_timeout)"""
UNDEFINED = frozenset({"42P01", "42703"})
"""undefined_table, undefined_column"""
OUT_OF_SHARED_MEMORY = "53200"
COUNTED_EVERY = 256
"""One of so many claims of a caller's transaction counts its locks, chosen by the hash of the key: every count takes
milliseconds. The row's id would not do, because a sequence may give odd numbers only."""
LOCKS_SQL = (
    "SELECT count(*), current_setting('max_locks_per_transaction')::bigint "
    "* (current_setting('max_connections')::bigint + current_setting('max_prepared_transactions')::bigint) "
    "FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()"
)
LOST = "django_idempotency: claim lost in"
"""What no number looks like. PostgreSQL repeats the text in its error, in any language."""
IN_TRANSACTION, IN_ERROR = 2, 3
"""libpq's PQTRANS_INTRANS and PQTRANS_INERROR"""
CLOCK = "clock_timestamp()"
LATER = "clock_timestamp() + %s * interval '1 second'"


class PostgreSQLStore(PostgreSQLCleanup):
    vendor = "postgresql"
    dialect = Dialect(
        clock=CLOCK,
        # A volatile function is compared row by row. Without the subselect the last batch of every cleanup reads the
        # index entry of every living key.
        clock_once=f"(SELECT {CLOCK})",
        later=LATER,
        seconds_until=f"EXTRACT(EPOCH FROM {{}} - {CLOCK})",
        skip_locked="FOR UPDATE SKIP LOCKED",
        no_lease="'1970-01-01 00:00:00+00'",
        lock="FOR NO KEY UPDATE",
        lock_or_skip="FOR NO KEY UPDATE SKIP LOCKED",
    )

    def claim(self, wanted: ClaimRequest) -> ClaimOutcome:
        wanted = wanted.begun()
        outcome = self._claim_in_few_round_trips(wanted) or super().claim(wanted)
        if isinstance(outcome, Conflicted) and wanted.wait:
            outcome = self._wait(wanted)
        if isinstance(outcome, Claimed) and wanted.identity.key_hash % COUNTED_EVERY == 0 and self._is_inside_a_job():
            self._refuse_too_many_locks()
        return outcome

    def _claim_in_few_round_trips(self, wanted: ClaimRequest) -> ClaimOutcome | None:
        """The usual outcomes: a claim in one round trip, an answer to a duplicate in two. See `round_trips`.

        None: this connection cannot do that, or the row has to be taken over or resumed, or was deleted just now. No
        transaction is open then.
        """
        connection = self.connection
        cursor = round_trips.cursor_of(connection)
        if not round_trips.may_open(connection, cursor):
            return None
        if (outcome := self._begin_with_claim(connection, cursor, wanted)) is not None:
            return outcome
        round_trips.forget_cursor(connection)  # it is about to hold the stored row
        round_trips.close_with(cursor, self._read_sql, self._read_params(wanted))
        try:
            stored = self._stored_or_locked(cursor.fetchone())
        except KeyLocked:
            return Conflicted()
        decision = None if stored is None else decide(stored, wanted)
        return None if isinstance(decision, TakeOver | Resume) else decision

    def _begin_with_claim(
        self, connection: BaseDatabaseWrapper, cursor: CursorWrapper, wanted: ClaimRequest
    ) -> ClaimOutcome | None:
        """Begin the transaction and claim a new key. None: the key is stored or in flight. The transaction is open."""
        driver = round_trips.open_with(connection, cursor, self._insert_sql, self._insert_params(wanted))
        inserted = driver.fetchone()
        return None if inserted is None else new_claim(row_of(inserted[0], wanted), attempt=1)

    def _end_with(self, lost: Callable[[], Exception], sql: str, params: list[Any]) -> None:
        connection = self.connection
        cursor = round_trips.cursor_of(connection)
        if not round_trips.may_close(connection, cursor):
            super()._end_with(lost, sql, params)
            return
        # Fails unless one row was written: the COMMIT behind it must not be reached.
        checked = (
            f"WITH written AS ({sql} RETURNING 1) "
            f"SELECT CASE WHEN count(*) <> 1 THEN ('{LOST} ' || count(*))::int END FROM written"
        )
        round_trips.forget_cursor(connection)  # it is about to hold a response or the value of a call
        try:
            round_trips.close_with(cursor, checked, params)
        except DataError as error:
            # A trigger of the project may fail at the COMMIT with a data error of its own.
            if LOST not in str(error):
                raise
            raise lost() from error

    def may_repeat(self, error: DatabaseError) -> bool:
        return sqlstate(error) in REPEATABLE

    def is_busy(self, error: DatabaseError) -> bool:
        # Another transaction holds the table: a migration, VACUUM FULL. `_wait` itself knows its own time-outs.
        return sqlstate(error) in GAVE_UP_WAITING

    def explain(self, error: DatabaseError) -> None:
        if sqlstate(error) == OUT_OF_SHARED_MEMORY:
            raise IdempotencyConfigurationError(
                f"PostgreSQL has no room for another lock ({str(error).strip()!r}). Each claim holds one until its "
                "transaction ends. If a job makes thousands of keyed calls in one transaction, let the job commit in "
                "batches: one transaction for each item is best. Else raise max_locks_per_transaction."
            ) from error
        super().explain(error)

    def _is_inside_a_job(self) -> bool:
        """Whether a caller's transaction may make many claims. That of a `TestCase` does not count."""
        blocks: Any = self.connection.atomic_blocks
        return bool(self.connection.savepoint_ids) and not blocks[0]._from_testcase

    def _refuse_too_many_locks(self) -> None:
        """Stop a transaction of very many claims before the server has no lock left for its neighbours."""
        held, room = self._fetch(LOCKS_SQL, [])
        if held > room // 2:
            raise IdempotencyConfigurationError(
                f"this transaction holds {held} advisory locks, most of them for idempotency keys. That is more than "
                f"half of the {room} locks that PostgreSQL has for all its transactions. Commit in batches: one "
                "transaction for each item is best."
            )

    def is_unmigrated(self, error: DatabaseError) -> bool:
        return sqlstate(error) in UNDEFINED

    def has_ended(self, connection: BaseDatabaseWrapper, claimed: Claimed) -> bool:
        # After a COMMIT that does no harm: the claim is committed, and the completion will find it.
        return self.has_no_transaction(connection) and bool(
            self._fetch(self._sql.read_attempt, claimed.row.found_by) != (claimed.attempt,)
        )

    def has_no_transaction(self, connection: BaseDatabaseWrapper) -> bool:
        # psycopg 3 sends another BEGIN before the next statement, unless the view has switched its autocommit on.
        # psycopg2 takes its own BEGIN for still in force.
        raw: Any = connection.connection
        begins = hasattr(raw, "pgconn") and not raw.autocommit
        if raw is None or begins or connection.closed_in_transaction:
            return False
        return bool(raw.info.transaction_status == round_trips.IDLE)

    def has_begun(self, connection: BaseDatabaseWrapper) -> bool:
        raw: Any = connection.connection
        return raw is not None and raw.info.transaction_status in (IN_TRANSACTION, IN_ERROR)

    def _is_aborted(self, connection: BaseDatabaseWrapper) -> bool:
        raw: Any = connection.connection
        return bool(raw.info.transaction_status == IN_ERROR)

    @cached_property
    def _insert_sql(self) -> str:
        """Insert a new row under the advisory lock, unless the key is stored already.

        Returns no row at once if another transaction holds the advisory lock.

        Without NOT EXISTS, every replay would draw a number from the sequence, which is written to the WAL.
        """
        sql = self._sql
        return (
            f"INSERT INTO {sql.table} ({sql.new_row}) SELECT %s::bigint, %s::bigint, %s::text, %s::text, %s::varchar, "
            f"%s::bytea, %s::varchar, %s::varchar, 1, {CLOCK}, {CLOCK}, {LATER}, {LATER} "
            f"WHERE NOT EXISTS (SELECT 1 FROM {sql.table} WHERE {sql.same_hashes}) AND pg_try_advisory_xact_lock(%s) "
            f"ON CONFLICT ({sql.k['key_hash']}, {sql.k['scope_hash']}) DO NOTHING "
            f"RETURNING {sql.k['id']}"
        )

    @cached_property
    def _read_sql(self) -> str:
        """Read the row, and try the advisory lock where no stored response and no live lease stands in the way.

        Always returns one row; without a stored key its columns are NULL. The snapshot may be older than the lock.
        So a lock without a stored key means only: try to insert again.
        """
        sql = self._sql
        return (
            f"SELECT CASE WHEN {sql.k['id']} IS NULL OR {sql.status_is(Status.FAILED)} "
            f"OR {sql.lapsed} OR ({sql.expired}) THEN pg_try_advisory_xact_lock(%s) END, {sql.stored_key} "
            f"FROM (SELECT 1) AS one LEFT JOIN {sql.table} ON {sql.same_hashes}"
        )

    def _insert(self, wanted: ClaimRequest) -> int | None:
        row = self._fetch(self._insert_sql, self._insert_params(wanted))
        return None if row is None else row[0]

    def _insert_params(self, wanted: ClaimRequest) -> list[Any]:
        identity = wanted.identity
        return [*as_new_row(wanted), identity.key_hash, identity.scope_hash, identity.scope_hash]

    def _read(self, wanted: ClaimRequest) -> StoredKey | None:
        return self._stored_or_locked(self._fetch(self._read_sql, self._read_params(wanted)))

    def _read_params(self, wanted: ClaimRequest) -> list[Any]:
        identity = wanted.identity
        return [identity.scope_hash, identity.key_hash, identity.scope_hash]

    def _stored_or_locked(self, row: Any) -> StoredKey | None:
        """A row of `_read_sql`."""
        locked, *values = row
        if locked is False:
            raise KeyLocked
        return None if values[0] is None else as_stored_key(values)

    def _take_over(self, row: Row, wanted: ClaimRequest) -> int | None:
        take_over = f"{self._sql.take_over} RETURNING {self._sql.k['attempt']}"
        taken = self._fetch(take_over, [wanted.fingerprint, wanted.policy, wanted.ttl, wanted.lease, *row.found_by])
        return None if taken is None else taken[0]

    def _wait(self, wanted: ClaimRequest) -> ClaimOutcome:
        """Wait for the transaction that runs the key, then claim again. The view never sees our lock_timeout.

        The waiting statement reads no table. So only the lock of the key can make it wait, and not a migration's. It
        must not read one: its snapshot would be older than the end of the wait.
        """
        milliseconds = max(1, math.ceil(wanted.left * 1000))
        previous = self._set_lock_timeout(f"{milliseconds}ms")
        try:
            self._wait_for_lock(wanted.identity)
        except OperationalError as error:
            if sqlstate(error) not in GAVE_UP_WAITING:
                raise
            # The transaction is aborted; only the claim was in it.
            transaction.set_rollback(True, using=self.alias)
            return Conflicted()
        self._set_lock_timeout(previous)
        return super().claim(wanted)

    def _set_lock_timeout(self, value: str) -> str:
        """Limit each wait for a lock until the transaction ends. Returns the value that was set before."""
        sql = "SELECT current_setting('lock_timeout'), set_config('lock_timeout', %s, true)"
        return str(self._fetch(sql, [value])[0])

    def _wait_for_lock(self, identity: Identity) -> None:
        self._fetch("SELECT pg_advisory_xact_lock(%s)", [identity.scope_hash])

    def running(self) -> list[RunningTransaction]:
        return [
            RunningTransaction(pid=pid, keys=keys, seconds=None if age is None else max(0.0, float(age)), state=state)
            for pid, keys, age, state in self._fetch_all(RUNNING_SQL, [self._sql.table])
        ]


def sqlstate(error: DatabaseError) -> str | None:
    cause = error.__cause__
    # psycopg 3, then psycopg2
    return getattr(cause, "sqlstate", None) or getattr(cause, "pgcode", None)
