"""The store for PostgreSQL, where an advisory lock shows whether a request with the same key is running.

A running view's transaction holds the advisory lock whose number is `scope_hash`. A duplicate only tries to take
that lock, and gets `Conflicted` instead of waiting for the row. The unique constraint ensures that each key has only
one row.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, ClassVar

from django.conf import settings
from django.db import DatabaseError, Error, InterfaceError, OperationalError, transaction

from ...exceptions import IdempotencyConfigurationError, TransactionBroken
from ...models import IdempotencyKey
from ..protocol.outcomes import Claimed, ClaimOutcome, ClaimRequest, Conflicted, Known
from ..protocol.stored_key import Resume, Status, StoredKey, TakeOver, decide
from . import messages
from .journal import Journal
from .messages import IDLE, IN_ERROR, IN_TRANSACTION
from .postgresql_journal import PostgreSQLJournal
from .prepared import Statement, statements
from .queries import Values, as_stored_key, values_of, values_of_claim
from .server_checks import check_distribution, rows_of
from .store import LONG_AGO, KeyLocked, RunningTransaction, Store, T, claim_lost, new_claim
from .transactions import atomically

if TYPE_CHECKING:
    from django.core.checks import CheckMessage
    from django.db.backends.base.base import BaseDatabaseWrapper

UNHEARD = 0.5
"""How many seconds the store may look for a claim whose answer it has not received."""
CONNECTION_FAILURE = "08006"
OUT_OF_SHARED_MEMORY = "53200"
CASTS = {"key_hash": "bigint", "scope_hash": "bigint", "fingerprint": "bytea"}
"""The types of those parameters whose type PostgreSQL can't infer in an INSERT … SELECT."""
TRY_LOCK = "pg_try_advisory_xact_lock(%(scope_hash)s::bigint)"
"""Takes the key's advisory lock, or immediately returns false if another transaction holds it."""
CHECKED = "WITH written AS ({} RETURNING 1) SELECT 1 / count(*){{seqscan_back}} FROM written"
"""If no row was written, the division by zero keeps PostgreSQL from running the COMMIT in the same message."""
WALK_INDEXES = "SELECT " + ", ".join(
    f"set_config('{name}', 'off', true)"
    for name in ("enable_bitmapscan", "enable_seqscan", "enable_hashjoin", "enable_mergejoin", "jit")
)
PURGE = (
    "WITH expired AS MATERIALIZED (SELECT ctid AS place, tableoid AS part FROM {table} "
    "WHERE {expired} AND {expires_at} >= %(not_before)s ORDER BY {expires_at} LIMIT %(limit)s FOR UPDATE SKIP LOCKED), "
    "gone AS (DELETE FROM {table} WHERE ctid = ANY(ARRAY(SELECT place FROM expired)) "
    "AND (tableoid = '{table}'::regclass OR (tableoid, ctid) IN (SELECT part, place FROM expired)) "
    "RETURNING {id} AS i, {key_hash} AS k, {scope_hash} AS s, {policy} AS leased, {expires_at} AS until"
    "), emptied AS (DELETE FROM {steps} USING gone WHERE leased IS NOT NULL AND {steps}.{step_key} = gone.i "
    "AND {steps}.{key_hash} = gone.k AND {steps}.{scope_hash} = gone.s) "
    "SELECT count(*), max(until) FROM gone"
)
"""Delete a batch of expired keys with their steps. A ctid is unique only within one partition. In a partitioned table,
the partition is therefore compared, too. Steps are deleted only for keys that were actually deleted."""


RUNNING_SQL = (
    "SELECT held.pid, activity.application_name, held.keys, "
    "EXTRACT(EPOCH FROM clock_timestamp() - activity.xact_start), activity.state FROM ("
    "SELECT pid, count(*) FILTER (WHERE locktype = 'advisory' AND objsubid = 1 AND mode = 'ExclusiveLock') AS keys, "
    "bool_or(locktype = 'relation' AND relation = %(table)s::regclass AND mode = 'RowExclusiveLock') AS writes "
    "FROM pg_locks WHERE granted AND pid IS NOT NULL "
    "AND database = (SELECT oid FROM pg_database WHERE datname = current_database()) GROUP BY pid) AS held "
    "LEFT JOIN pg_stat_activity AS activity ON activity.pid = held.pid "
    "WHERE held.writes AND held.keys > 0 ORDER BY activity.xact_start NULLS LAST, held.pid"
)
"""Its `table` parameter is the quoted name of the key table.

# Note [Which advisory locks are ours]
An advisory lock's number is a hash, and another application may use the same number. But each claim also writes to
the key table, and then holds a lock on that table until its transaction ends. `RUNNING_SQL` therefore returns only
transactions that hold both locks. A statement to mark the advisory lock as ours would make every request slower."""


SCHEMAS_SQL = (
    "SELECT place.nspname FROM pg_catalog.pg_class AS held JOIN pg_catalog.pg_namespace AS place "
    "ON place.oid = held.relnamespace WHERE held.relname = %(table)s AND held.relkind IN ('r', 'p') "
    "AND has_schema_privilege(place.oid, 'USAGE') {} ORDER BY 1"
)
ELSEWHERE_SQL = SCHEMAS_SQL.format("AND NOT pg_catalog.pg_table_is_visible(held.oid) AND current_schema() = %(shared)s")


class PostgreSQLStore(Store):
    journal_type: ClassVar[type[Journal]] = PostgreSQLJournal
    repeatable = frozenset({"40001", "40P01"})  # serialization_failure, deadlock_detected
    # lock_not_available and query_canceled: the claim outlasted the project's lock_timeout or statement_timeout,
    # perhaps because a migration or VACUUM FULL has locked the table.
    busy = frozenset({"55P03", "57014"})
    # A lost connection, PgBouncer's query_wait_timeout, a server that is stopping or starting, the three timeouts that
    # end a session (57P05, 25P03 and 25P04), too_many_connections, and read_only_sql_transaction, as on a replica.
    down = frozenset(
        {CONNECTION_FAILURE, "08P01", "57P01", "57P02", "57P03", "57P05", "25P03", "25P04", "53300", "25006"}
    )
    lost = frozenset({"26000"})  # invalid_sql_statement_name
    level_is_fixed = frozenset({"25001"})  # active_sql_transaction, after SET TRANSACTION ISOLATION LEVEL
    unmigrated = frozenset({"42P01", "42703"})  # undefined_table, undefined_column

    def code(self, error: Error) -> object:
        # psycopg 3 calls the code sqlstate, and psycopg2 calls it pgcode. Errors from libpq or from a connection pool
        # don't come from a server, and carry no code.
        sent = getattr(error.__cause__, "sqlstate", None) or getattr(error.__cause__, "pgcode", None)
        return sent or (CONNECTION_FAILURE if isinstance(error, OperationalError | InterfaceError) else None)

    def claim(
        self, request: ClaimRequest, connection: BaseDatabaseWrapper | None = None, *, last: bool = False
    ) -> ClaimOutcome:
        connection = connection or self.connection
        if not request.known_only and messages.may_send(connection, IDLE):
            # Whether a new key is too old is known only after the claim, so COMMIT must not go along with it.
            outcome = self._claim_by_messages(connection, request, last=last and request.late is None)
            if outcome is not None:
                return outcome
        return super().claim(request)

    def _claim_by_messages(
        self, connection: BaseDatabaseWrapper, request: ClaimRequest, *, last: bool
    ) -> ClaimOutcome | None:
        """Claim a key with a single message. A duplicate takes two messages, unless COMMIT was sent with the claim.

        Returns None, with no transaction open, if the key has failed, is abandoned or has expired, or if another
        transaction stored or deleted its row a moment ago.
        """
        try:
            result = messages.begin(connection, self._statements, values_of(request), last=last)
        except DatabaseError as error:
            if not messages.roll_back(connection, error):
                raise
            return self._claim_by_messages(connection, request, last=last)
        if result.ntuples == 0:
            # Another transaction holds the key's lock, or changed its row a moment ago.
            return None if messages.end_and_lock(connection, request.identity.scope_hash) else Conflicted()
        if (row_id := result.get_value(0, 0)) is not None:
            claimed = new_claim(int(row_id), request)
            return claimed if request.late is None else self._unless(request.late, claimed, result.get_value(0, 1))
        facts, body = result.get_value(0, 1), result.get_value(0, 2)
        known = partial(_known, facts.decode(), body and body.decode(), request)
        is_open = connection.connection.pgconn.transaction_status == IN_TRANSACTION
        return messages.end_while(connection, known) if is_open else known()

    def unheard(self, request: ClaimRequest) -> Claimed | None:
        # The row may be a claim that another thread of this process has made since. That thread has done nothing so
        # far, and its next step is refused.
        identity = request.identity
        rows = IdempotencyKey.objects.using(self.alias).filter(
            key_hash=identity.key_hash,
            scope_hash=identity.scope_hash,
            scope=identity.scope,
            operation=identity.operation,
            key=identity.key,
            status=Status.IN_PROGRESS.value,
            attempt=1,
            worker=values_of(request)["worker"],
            unknown=0,
            effects=0,
        )
        # The time is limited, because the exception that is being handled must not wait for a migration.
        ids = self.read(UNHEARD, lambda: list(rows.values_list("pk", flat=True)))
        return new_claim(ids[0], request) if ids else None

    def _write_last(self, name: str, values: Values, connection: BaseDatabaseWrapper) -> None:
        try:
            if connection.needs_rollback or not messages.may_send(connection, IN_TRANSACTION, IDLE):
                super()._write_last(name, values, connection)
            else:
                statement = self._statements.get(name) or self._texts[name]
                messages.send(connection, statement, values, last=True)
        except DatabaseError as error:
            # IN_ERROR shows that the error did not come from COMMIT, which ends the transaction even if it fails. The
            # project's deferred triggers may fail at COMMIT with the same codes.
            raw: Any = connection.connection
            if raw is not None and raw.info.transaction_status == IN_ERROR:
                self._name_cause(name, error)
            raise

    def _name_cause(self, name: str, error: DatabaseError) -> None:
        match self.code(error):
            # The statement divides by the number of rows it wrote, so it fails if the claim is lost. It also fails in a
            # schema without the table.
            case "22012" | "42P01":
                raise claim_lost() from error
            case code if code in self.lost:
                raise DatabaseError(
                    "The view sent DEALLOCATE ALL, which also removed the prepared statement that stores its result. "
                    "Everything is rolled back. This connection prepares no more statements, so a retry succeeds."
                ) from error.__cause__
            case "25006" if name in self._statements:  # no view runs in the transaction that ends leased work
                raise TransactionBroken(
                    "The view made its transaction read-only (SET TRANSACTION READ ONLY), so its result could not be "
                    "stored. Everything is rolled back. Read in a transaction of its own, or on another alias."
                ) from error

    @cached_property
    def _statements(self) -> dict[str, Statement]:
        return statements(
            claim=self._claim_sql,
            complete=CHECKED.format(self._sql.complete),
            release=CHECKED.format(self._sql.release),
        )

    @cached_property
    def _texts(self) -> dict[str, Statement]:
        """The statements that end leased work, and that are not prepared."""
        names = ("complete_for", "complete_settled")
        return {name: Statement("", CHECKED.format(getattr(self._sql, name))) for name in names}

    def read(self, seconds: float, work: Callable[[], T]) -> T:
        def run() -> T:
            self._execute("SELECT set_config('statement_timeout', %(ms)s, true)", {"ms": str(int(seconds * 1000))})
            result = work()
            # The rollback restores the timeout, also behind a pooler and within an outer transaction.
            transaction.set_rollback(True, using=self.alias)
            return result

        return atomically(self.alias, run)

    def explain(self, error: Error) -> None:
        if self.code(error) == OUT_OF_SHARED_MEMORY:
            raise IdempotencyConfigurationError(
                f"PostgreSQL has no room for another lock ({str(error).strip()!r}). Each claim holds one until its "
                "transaction ends. If a job makes thousands of keyed calls in one transaction, let the job commit in "
                "batches: one transaction for each item is best. Otherwise raise max_locks_per_transaction."
            ) from error
        if "statement pooling mode" in str(error):
            raise IdempotencyConfigurationError(
                f"PgBouncer pools database {self.alias!r} by statement ({str(error).strip()!r}), so no transaction can "
                "begin there. Set pool_mode = transaction."
            ) from error
        super().explain(error)

    def is_open(self, connection: BaseDatabaseWrapper) -> bool:
        if connection.needs_rollback or connection.closed_in_transaction:
            return False
        pgconn = getattr(connection.connection, "pgconn", None)  # psycopg2 has no `pgconn`
        return pgconn is not None and bool(pgconn.transaction_status == IN_TRANSACTION)

    def has_ended(self, connection: BaseDatabaseWrapper, claimed: Claimed) -> bool:
        # If the view has sent COMMIT, its claim is in the table, and `complete` can still store the response there.
        if not self.has_no_transaction(connection):
            return False
        own = f"SELECT 1 FROM {self._sql.table} WHERE {self._sql.fence}"
        return self._fetch(own, values_of_claim(claimed)) is None

    def has_no_transaction(self, connection: BaseDatabaseWrapper) -> bool:
        # psycopg 3 begins another transaction before its next statement, unless the view switched autocommit on.
        # psycopg2 doesn't notice that the transaction has ended, and doesn't begin another one.
        raw: Any = connection.connection
        begins = hasattr(raw, "pgconn") and not raw.autocommit
        if raw is None or begins or connection.closed_in_transaction:
            return False
        return bool(raw.info.transaction_status == IDLE)

    def has_begun(self, connection: BaseDatabaseWrapper) -> bool:
        raw: Any = connection.connection
        return raw is not None and raw.info.transaction_status in (IN_TRANSACTION, IN_ERROR)

    def is_broken(self, connection: BaseDatabaseWrapper) -> bool:
        if connection.needs_rollback or connection.closed_in_transaction:  # the connection may be back in its pool
            return True
        # The server may refuse all further statements even though Django has seen no error.
        raw: Any = connection.connection
        status = (raw.pgconn if hasattr(raw, "pgconn") else raw.info).transaction_status  # psycopg2 has no `pgconn`
        return bool(status == IN_ERROR)

    @cached_property
    def _claim_sql(self) -> str:
        """Read a key's row, or, if there is none, take the advisory lock without waiting and INSERT a row.

        For a new row, the statement returns its id and the current time. For a stored row, it returns NULL, a JSON list
        of every column but the body, and the body itself. If it could neither read nor insert a row, it returns no row.
        """
        sql, k = self._sql, self._sql.k
        row = {**sql.new_row}
        for name in ("key_hash", "scope_hash", "scope", "operation", "key", "fingerprint", "policy", "worker"):
            row[k[name]] += f"::{CASTS.get(name, 'text')}"
        stored = sql.stored_key(sql.expired)
        body = stored.pop("body")
        stored["fingerprint"] = f"encode({stored['fingerprint']}, 'hex')"
        return (
            f"WITH stored AS MATERIALIZED (SELECT json_build_array({', '.join(stored.values())})::text AS facts, "
            f"encode({body}, 'hex') AS body FROM {sql.table} WHERE {sql.same_hashes}), "
            f"inserted AS (INSERT INTO {sql.table} ({', '.join(row)}) SELECT {', '.join(row.values())} "
            f"WHERE NOT EXISTS (SELECT 1 FROM stored) AND {TRY_LOCK} "
            f"ON CONFLICT ({k['key_hash']}, {k['scope_hash']}) DO NOTHING RETURNING {k['id']}) "
            f"SELECT {k['id']}, {sql.seconds_since_1970}::text, NULL{{seqscan_back}} FROM inserted "
            "UNION ALL SELECT NULL, facts, body{seqscan_back} FROM stored"
        )

    @cached_property
    def _read_sql(self) -> str:
        """SELECT a key's row, and take the advisory lock if the key can be claimed.

        It always returns one row, in which the key's columns are NULL if no key is stored. A key that is stored after
        the SELECT began is not seen. Therefore, if the lock was free and no key was found, the store tries the INSERT
        again.
        """
        sql = self._sql
        stored = sql.stored_key(sql.expired)
        free = f"{sql.k['status']} = '{Status.FAILED.value}' OR {sql.lapsed} OR {sql.expired}"
        return (
            f"SELECT CASE WHEN {sql.k['id']} IS NULL OR {free} "
            f"THEN {TRY_LOCK} END, {', '.join(stored.values())} "
            f"FROM (SELECT 1) AS one LEFT JOIN {sql.table} ON {sql.same_hashes}"
        )

    def _insert(self, request: ClaimRequest) -> int | Known | None:
        row = self._fetch(self._statements["claim"].text, values_of(request))
        row_id, facts, body = row or (None, None, None)
        if row_id is None and isinstance(facts, str):  # `_read` refuses bytes, which some client encodings cause
            return _known(facts, body, request)
        return None if row_id is None else int(row_id)

    def _read(self, request: ClaimRequest) -> StoredKey | None:
        locked, *row = self._fetch(self._read_sql, values_of(request))
        if locked is False:
            raise KeyLocked
        return None if row[0] is None else as_stored_key(row)

    def purge(self, batch_size: int, not_before: Any = None) -> tuple[int, Any]:
        # PostgreSQL estimates that 0.5% of the rows lie between the two limits on `expires_at`, and may therefore read
        # and sort all expired rows in every batch. WALK_INDEXES makes it follow the index and look up each step, which
        # is faster.
        self._fetch(WALK_INDEXES)
        return self._purge(batch_size, not_before or LONG_AGO)

    def _purge(self, batch_size: int, not_before: Any) -> tuple[int, Any]:
        values = {"not_before": not_before, "limit": batch_size}
        count, last = self._fetch(self._purge_sql, values)
        return count, last or not_before

    @cached_property
    def _purge_sql(self) -> str:
        sql = self._sql
        names = {"table": sql.table, "steps": sql.steps, "step_key": sql.step_key, "expired": sql.expired}
        return PURGE.format(**sql.k, **names)

    def running(self) -> list[RunningTransaction]:
        return [
            RunningTransaction(
                pid=pid,
                application_name=name,
                keys=keys,
                seconds=None if age is None else max(0.0, float(age)),
                state=state,
            )
            for pid, name, keys, age, state in rows_of(self.connection, RUNNING_SQL, {"table": self._sql.table})
        ]

    def elsewhere(self) -> list[str]:
        shared = getattr(settings, "PUBLIC_SCHEMA_NAME", "public")  # django-tenants' setting
        names = {"table": IdempotencyKey._meta.db_table, "shared": shared}
        return [schema for (schema,) in rows_of(self.connection, ELSEWHERE_SQL, names)]

    def schemas(self) -> list[str]:
        names = {"table": IdempotencyKey._meta.db_table}
        return [schema for (schema,) in rows_of(self.connection, SCHEMAS_SQL.format(""), names)]


def _known(facts: str, body: str | None, request: ClaimRequest) -> Known | None:
    """Return a duplicate's outcome from the row that its claim has read. Return None if the key can be claimed."""
    outcome = decide(as_stored_key([*json.loads(facts), body]), request)
    return None if isinstance(outcome, TakeOver | Resume) else outcome


class CitusStore(PostgreSQLStore):
    """PostgreSQL with the Citus extension, where each tenant's schema is on one of several nodes.

    A key's row is on its tenant's node, so it is committed in one phase with the tenant's other rows. A view that
    writes to several nodes commits in two phases. Each statement here is a "router query", which Citus passes unchanged
    to the schema's node. That rules out INSERT … SELECT, which Citus may run on another node.
    """

    journal_type = Journal

    def check(self) -> Iterable[CheckMessage]:
        return [*super().check(), *check_distribution(self.connection)]

    def claim(
        self, request: ClaimRequest, connection: BaseDatabaseWrapper | None = None, *, last: bool = False
    ) -> ClaimOutcome:
        # Messages with several statements would save little, because Citus spends most of the time on communication
        # between its nodes.
        return Store.claim(self, request)

    def _insert(self, request: ClaimRequest) -> int | None:
        # `_read` takes the advisory lock on the node that stores the row. Citus sends every duplicate to the same node.
        if self._read(request) is not None:
            return None
        row = self._fetch(f"{self._sql.insert_if_new} RETURNING {self._sql.k['id']}", values_of(request))
        return None if row is None else int(row[0])

    def _purge(self, batch_size: int, not_before: Any) -> tuple[int, Any]:
        # These are router queries, each on a single table.
        return Store.purge(self, batch_size, not_before)
