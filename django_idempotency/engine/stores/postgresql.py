"""On PostgreSQL, an advisory lock shows whether a request with the same key is running.

While a view runs, its transaction has the advisory lock with the number `scope_hash`. A duplicate request tries to take
the same lock. If the duplicate does not get the lock, the store returns `Conflicted` and does not wait for the row. A
unique constraint makes sure that the table has each key only once.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from django.conf import settings
from django.db import DatabaseError, Error, InterfaceError, OperationalError, connections

from ...exceptions import IdempotencyConfigurationError, TransactionBroken
from ...models import IdempotencyKey
from ..protocol.outcomes import Claimed, ClaimOutcome, ClaimRequest, Conflicted
from ..protocol.stored_key import Resume, Status, StoredKey, TakeOver, decide
from . import messages
from .messages import IDLE, IN_ERROR, IN_TRANSACTION, Statement
from .queries import Values, as_stored_key, values_of, values_of_claim
from .server_checks import check_distribution, rows_of
from .store import LONG_AGO, KeyLocked, RunningTransaction, Store, claim_lost, new_claim

if TYPE_CHECKING:
    from django.core.checks import CheckMessage
    from django.db.backends.base.base import BaseDatabaseWrapper

CONNECTION_FAILURE = "08006"
OUT_OF_SHARED_MEMORY = "53200"
CASTS = {"key_hash": "bigint", "scope_hash": "bigint", "fingerprint": "bytea"}
"""The types of the parameters that are not text. PostgreSQL cannot guess these types in an INSERT … SELECT."""
TRY_LOCK = "pg_try_advisory_xact_lock(%(scope_hash)s::bigint)"
"""If another transaction has the advisory lock of the key, this SQL function does not wait, and returns false."""
WALK_INDEXES = "SELECT " + ", ".join(
    f"set_config('{name}', 'off', true)"
    for name in ("enable_bitmapscan", "enable_seqscan", "enable_hashjoin", "enable_mergejoin", "jit")
)
PURGE = (
    "WITH expired AS MATERIALIZED (SELECT ctid AS place, {key_hash} AS k, {scope_hash} AS s FROM {table} "
    "WHERE {expired} AND {expires_at} >= %(not_before)s ORDER BY {expires_at} LIMIT %(limit)s FOR UPDATE SKIP LOCKED), "
    "gone AS (DELETE FROM {table} USING expired WHERE {table}.ctid = expired.place AND {table}.{key_hash} = expired.k "
    "AND {table}.{scope_hash} = expired.s RETURNING {table}.{id} AS i, k, s, {policy} AS leased, {expires_at} AS until"
    "), emptied AS (DELETE FROM {steps} USING gone WHERE leased IS NOT NULL AND {steps}.{step_key} = gone.i "
    "AND {steps}.{key_hash} = gone.k AND {steps}.{scope_hash} = gone.s) "
    "SELECT count(*), max(until) FROM gone"
)
"""Delete a batch of expired keys and their steps. A row is named by its address and its hashes, because an address, the
ctid, is unique in one partition only. Only what was deleted takes its steps along.
"""


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
"""This query has the parameter `table`, the quoted name of the key table.

# Note [Which advisory locks are ours]
The number of this package's advisory lock is a hash, so a different application can use the same number. But each claim
also writes to the key table, and then has a lock on this table until the transaction ends. `RUNNING_SQL` returns only
transactions that have an advisory lock and also a lock on the key table. An additional statement could mark the
advisory lock as a lock of this package, but would make every request slower.
"""


ELSEWHERE_SQL = (
    "SELECT place.nspname FROM pg_catalog.pg_class AS held JOIN pg_catalog.pg_namespace AS place "
    "ON place.oid = held.relnamespace WHERE held.relname = %(table)s AND held.relkind IN ('r', 'p') "
    "AND NOT pg_catalog.pg_table_is_visible(held.oid) AND has_schema_privilege(place.oid, 'USAGE') "
    "AND current_schema() = %(shared)s ORDER BY 1"
)


class PostgreSQLStore(Store):
    repeatable = frozenset({"40001", "40P01"})  # serialization_failure, deadlock_detected
    # The codes lock_not_available and query_canceled mean that a claim has waited longer than the project's
    # lock_timeout or statement_timeout. For example, a migration or VACUUM FULL has locked the table.
    busy = frozenset({"55P03", "57014"})
    # The connection is lost, PgBouncer's query_wait_timeout, a server that stops or starts, too_many_connections, and
    # read_only_sql_transaction, as on a replica.
    down = frozenset({CONNECTION_FAILURE, "08P01", "57P01", "57P02", "57P03", "57P05", "53300", "25006"})
    lost = frozenset({"26000"})  # invalid_sql_statement_name
    unmigrated = frozenset({"42P01", "42703"})  # undefined_table, undefined_column

    def code(self, error: Error) -> object:
        # An error of psycopg 3 has the attribute sqlstate, and an error of psycopg2 has the attribute pgcode. An error
        # of libpq and of a connection pool has neither, because no server has sent it.
        sent = getattr(error.__cause__, "sqlstate", None) or getattr(error.__cause__, "pgcode", None)
        return sent or (CONNECTION_FAILURE if isinstance(error, OperationalError | InterfaceError) else None)

    def claim(self, wanted: ClaimRequest) -> ClaimOutcome:
        connection = connections[self.alias]
        if not wanted.known_only and messages.may_send(connection, IDLE):
            outcome = self._claim_by_messages(connection, wanted)
            if outcome is not None:
                return outcome
        return super().claim(wanted)

    def _claim_by_messages(self, connection: BaseDatabaseWrapper, wanted: ClaimRequest) -> ClaimOutcome | None:
        """Claim a key. This method sends one or two messages directly to the database.

        A successful claim needs one message to the database, and the answer to a duplicate needs two messages.

        The method returns None if the key has failed, is abandoned or has expired. The method also returns None if
        another transaction has stored or deleted the row a moment ago. When the method returns None, no transaction is
        open any more.
        """
        claim, *others = self._statements.values()
        try:
            found = messages.begin(connection, claim, others, values_of(wanted))
        except DatabaseError as error:
            if not messages.roll_back(connection, error):
                raise
            return self._claim_by_messages(connection, wanted)
        if found.ntuples == 0:
            # Another transaction holds the lock on the key, or another transaction changed the row a moment ago.
            return None if messages.end_and_lock(connection, wanted.identity.scope_hash) else Conflicted()
        if (row_id := found.get_value(0, 0)) is not None:
            claimed = new_claim(int(row_id), wanted)
            return claimed if wanted.late is None else self._unless(wanted.late, claimed, found.get_value(0, 1))
        return messages.end_while(connection, partial(_known, found, wanted))

    def _write_last(self, name: str, values: Values) -> None:
        connection = connections[self.alias]
        try:
            if connection.needs_rollback or not messages.may_send(connection, IN_TRANSACTION):
                super()._write_last(name, values)
            else:
                messages.end_with(connection, self._statements[name], values)
        except DatabaseError as error:
            # A trigger of the project can fail with the same codes, but only during COMMIT. A failed COMMIT ends the
            # transaction. So the status IN_ERROR shows that the error does not come from COMMIT.
            raw: Any = connection.connection
            if raw is not None and raw.info.transaction_status == IN_ERROR:
                self._name_cause(error)
            raise

    def _name_cause(self, error: DatabaseError) -> None:
        match self.code(error):
            # The statement divides 1 by the number of rows that it has written. So if this worker no longer has the
            # claim, the statement fails with a division by zero. In a schema without the table, it fails as well.
            case "22012" | "42P01":
                raise claim_lost() from error
            case code if code in self.lost:
                raise DatabaseError(
                    "The view sent DEALLOCATE ALL, which also removed the prepared statement that stores its result. "
                    "Everything is rolled back. This connection prepares no more statements, so a retry succeeds."
                ) from error.__cause__
            case "25006":
                raise TransactionBroken(
                    "The view made its transaction read-only (SET TRANSACTION READ ONLY), so its result could not be "
                    "stored. Everything is rolled back. Read in a transaction of its own, or on another alias."
                ) from error

    @cached_property
    def _statements(self) -> dict[str, Statement]:
        # This SQL divides by zero if the statement has written no row. After a division by zero, PostgreSQL does not
        # run the COMMIT that follows in the same message.
        checked = "WITH written AS ({} RETURNING 1) SELECT 1 / count(*){{seqscan_back}} FROM written"
        return messages.statements(
            claim=self._claim_sql,
            complete=checked.format(self._sql.complete),
            release=checked.format(self._sql.release),
        )

    def explain(self, error: Error) -> None:
        if self.code(error) == OUT_OF_SHARED_MEMORY:
            raise IdempotencyConfigurationError(
                f"PostgreSQL has no room for another lock ({str(error).strip()!r}). Each claim holds one until its "
                "transaction ends. If a job makes thousands of keyed calls in one transaction, let the job commit in "
                "batches: one transaction for each item is best. Else raise max_locks_per_transaction."
            ) from error
        if "statement pooling mode" in str(error):
            raise IdempotencyConfigurationError(
                f"PgBouncer pools database {self.alias!r} by statement ({str(error).strip()!r}), so no transaction can "
                "begin there. Set pool_mode = transaction."
            ) from error
        super().explain(error)

    def has_ended(self, connection: BaseDatabaseWrapper, claimed: Claimed) -> bool:
        # If the view itself has sent COMMIT, the row of the claim is in the table. Then this method returns False,
        # because the row is not lost: the method `complete` can store the response in this row.
        if not self.has_no_transaction(connection):
            return False
        own = f"SELECT 1 FROM {self._sql.table} WHERE {self._sql.fence}"
        return self._fetch(own, values_of_claim(claimed)) is None

    def has_no_transaction(self, connection: BaseDatabaseWrapper) -> bool:
        # After the end of a transaction, psycopg 3 sends a new BEGIN before the next statement. If the view has
        # switched autocommit on, psycopg 3 sends no BEGIN. The driver psycopg2 does not notice that the transaction has
        # ended, so psycopg2 sends no new BEGIN.
        raw: Any = connection.connection
        begins = hasattr(raw, "pgconn") and not raw.autocommit
        if raw is None or begins or connection.closed_in_transaction:
            return False
        return bool(raw.info.transaction_status == IDLE)

    def has_begun(self, connection: BaseDatabaseWrapper) -> bool:
        raw: Any = connection.connection
        return raw is not None and raw.info.transaction_status in (IN_TRANSACTION, IN_ERROR)

    def is_broken(self, connection: BaseDatabaseWrapper) -> bool:
        if connection.needs_rollback or connection.closed_in_transaction:  # closed, a pool has taken it back
            return True
        # Sometimes the server refuses all further statements of the transaction, although Django has not noticed an
        # error.
        raw: Any = connection.connection
        status = (raw.pgconn if hasattr(raw, "pgconn") else raw.info).transaction_status  # psycopg2 has no `pgconn`
        return bool(status == IN_ERROR)

    @cached_property
    def _claim_sql(self) -> str:
        """Return a statement that reads the row of a key. If the key is not stored, the statement takes the advisory
        lock and inserts a new row. If another transaction has the advisory lock, the statement does not wait.

        If a row was inserted, the statement returns the id of the new row and the present time. If the key is stored
        already, it returns a row with three values: NULL, and two values from the stored row. One value is a JSON list
        of all columns except the body, and the other value is the body. If no row was inserted and no key is stored,
        the statement returns no row.
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
        """Return a SELECT that reads the row of a key. If the key can be claimed, the SELECT also takes the advisory
        lock.

        The SELECT always returns one row. If no key is stored, the columns of that row are NULL. The SELECT does not
        see a key that another transaction stores after the start of the SELECT. So if the SELECT takes the lock but
        finds no key, the store tries the INSERT again.
        """
        sql = self._sql
        stored = sql.stored_key(sql.expired)
        free = f"{sql.k['status']} = '{Status.FAILED.value}' OR {sql.lapsed} OR {sql.expired}"
        return (
            f"SELECT CASE WHEN {sql.k['id']} IS NULL OR {free} "
            f"THEN {TRY_LOCK} END, {', '.join(stored.values())} "
            f"FROM (SELECT 1) AS one LEFT JOIN {sql.table} ON {sql.same_hashes}"
        )

    def _insert(self, wanted: ClaimRequest) -> int | None:
        row = self._fetch(self._statements["claim"].text, values_of(wanted))
        return None if row is None else row[0]

    def _read(self, wanted: ClaimRequest) -> StoredKey | None:
        locked, *row = self._fetch(self._read_sql, values_of(wanted))
        if locked is False:
            raise KeyLocked
        return None if row[0] is None else as_stored_key(row)

    def purge(self, batch_size: int, not_before: Any = None) -> tuple[int, Any]:
        # The query of `purge` has a lower limit and an upper limit for the column `expires_at`. PostgreSQL guesses that
        # 0.5 % of the rows are between the two limits. Because of this wrong guess, the planner sometimes reads and
        # sorts all expired rows in every batch. After the statement `WALK_INDEXES`, PostgreSQL reads the rows in the
        # order of the index, and looks each step up. This is faster.
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


def _known(found: Any, wanted: ClaimRequest) -> ClaimOutcome | None:
    """Return the answer to a duplicate of a request. The argument `found` contains the stored row. If the key can be
    claimed again, return None.
    """
    facts, body = found.get_value(0, 1), found.get_value(0, 2)
    stored = as_stored_key([*json.loads(facts), None if body is None else body.decode()])
    outcome = decide(stored, wanted)
    return None if isinstance(outcome, TakeOver | Resume) else outcome


class CitusStore(PostgreSQLStore):
    """This store works on PostgreSQL with the Citus extension. Citus has several nodes, and each tenant has a schema on
    one node.

    The row of a key is on the same node as the tenant's other rows. So Citus commits the row of the key and the other
    rows together in one phase. If a view writes to several nodes, Citus commits in two phases. Each statement of this
    class is a "router query", which Citus sends unchanged to the node of the schema. This class uses no INSERT …
    SELECT, because Citus can run an INSERT … SELECT on a different node.
    """

    def check(self) -> Iterable[CheckMessage]:
        return [*super().check(), *check_distribution(self.connection)]

    def claim(self, wanted: ClaimRequest) -> ClaimOutcome:
        # This class sends each statement to the database in a separate message. We could send several statements in one
        # message. But a claim would be only a little faster, because Citus spends most of its time on the messages
        # between its nodes.
        return Store.claim(self, wanted)

    def _insert(self, wanted: ClaimRequest) -> int | None:
        # The method `_read` takes the advisory lock on the node that stores the row. Citus sends every duplicate of a
        # request to the node that stores the row, so each duplicate finds the lock.
        if self._read(wanted) is not None:
            return None
        row = self._fetch(f"{self._sql.insert_if_new} RETURNING {self._sql.k['id']}", values_of(wanted))
        return None if row is None else int(row[0])

    def _purge(self, batch_size: int, not_before: Any) -> tuple[int, Any]:
        # Each of these statements is a router query: it writes to one table.
        return Store.purge(self, batch_size, not_before)
