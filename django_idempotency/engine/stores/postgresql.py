"""On PostgreSQL, an advisory lock shows that a key is in flight, so no request waits. A unique constraint guards keys.

The transaction that runs the view has the advisory lock on `scope_hash`, so a duplicate never waits for the row.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from typing import TYPE_CHECKING, Any

from django.db import DatabaseError, connections

from ...exceptions import IdempotencyConfigurationError
from ..protocol.decision import Resume, Status, StoredKey, TakeOver, decide
from ..protocol.outcomes import Claimed, ClaimOutcome, ClaimRequest, Conflicted
from . import messages
from .messages import IDLE, IN_ERROR, IN_TRANSACTION, Statement
from .queries import COLUMNS, Values, as_stored_key, values_of, values_of_claim
from .server_checks import check_distribution, rows_of
from .store import KeyLocked, RunningTransaction, Store, claim_lost, new_claim

if TYPE_CHECKING:
    from django.core.checks import CheckMessage
    from django.db.backends.base.base import BaseDatabaseWrapper

OUT_OF_SHARED_MEMORY = "53200"
DIVISION_BY_ZERO = "22012"
CASTS = {"key_hash": "bigint", "scope_hash": "bigint", "fingerprint": "bytea"}
"""The types of the parameters that are not text. PostgreSQL cannot guess these types in an INSERT … SELECT."""
STATUS = list(COLUMNS).index("status")
WALK_INDEXES = "SELECT set_config('enable_bitmapscan', 'off', true), set_config('enable_seqscan', 'off', true)"


# Note [Which advisory locks are ours]
# The number of our advisory lock is a hash, so another application can use an equal number. But a claim also writes to
# the key table, and a transaction keeps its lock on the table until its end. So `RUNNING_SQL` returns a transaction
# only if the transaction has an advisory lock and has also written to the key table. One more statement in each claim
# could mark our locks clearly, but would make every request slower.
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
"""This query has the parameter `table`, the quoted name of the key table. See Note [Which advisory locks are ours]."""


class PostgreSQLStore(Store):
    repeatable = frozenset({"40001", "40P01"})  # serialization_failure, deadlock_detected
    # lock_not_available and query_canceled. The claim has reached the project's own lock_timeout or statement_timeout,
    # because another transaction, such as a migration or VACUUM FULL, has locked the table.
    busy = frozenset({"55P03", "57014"})
    unmigrated = frozenset({"42P01", "42703"})  # undefined_table, undefined_column

    def code(self, error: DatabaseError) -> object:
        # psycopg 3 has the attribute sqlstate, and psycopg2 has the attribute pgcode.
        return getattr(error.__cause__, "sqlstate", None) or getattr(error.__cause__, "pgcode", None)

    def claim(self, wanted: ClaimRequest) -> ClaimOutcome:
        connection = connections[self.alias]
        if not wanted.known_only and messages.may_send(connection, IDLE):
            outcome = self._claim_by_messages(connection, wanted)
            if outcome is not None:
                return outcome
        return super().claim(wanted)

    def _claim_by_messages(self, connection: BaseDatabaseWrapper, wanted: ClaimRequest) -> ClaimOutcome | None:
        """Handle the usual outcomes: a claim takes one message, and an answer to a duplicate takes two messages.

        Returns None if the row has failed, must be taken over or resumed, or was deleted just now. When the method
        returns None, no transaction is open any more.
        """
        values = values_of(wanted)
        claim, read, *others = self._statements.values()
        try:
            inserted = messages.begin(connection, claim, (read, *others), values)
            if inserted.ntuples:
                return new_claim(int(inserted.get_value(0, 0)), wanted)
            found = messages.end_and_read(connection, read, values)
        except DatabaseError as error:
            if not messages.roll_back(connection, error):
                raise
            return self._claim_by_messages(connection, wanted)
        locked, *row = messages.row_of(found, (bool, *COLUMNS.values()))
        if locked is False:
            return Conflicted()
        if row[0] is None or row[STATUS] == Status.FAILED.value:
            return None
        decision = decide(as_stored_key(row), wanted)
        return None if isinstance(decision, TakeOver | Resume) else decision

    def _write_last(self, name: str, values: Values) -> None:
        connection = connections[self.alias]
        if connection.needs_rollback or not messages.may_send(connection, IN_TRANSACTION):
            super()._write_last(name, values)
            return
        try:
            messages.end_with(connection, self._statements[name], values)
        except DatabaseError as error:
            # The statement divides by the number of rows that it has written, so a lost claim is a division by zero. A
            # deferred trigger can also divide by zero, but only at the COMMIT, and the COMMIT ends the transaction.
            raw: Any = connection.connection
            if self.code(error) == DIVISION_BY_ZERO and raw.info.transaction_status == IN_ERROR:
                raise claim_lost() from error
            raise

    @cached_property
    def _statements(self) -> dict[str, Statement]:
        # If no row was written, the division fails, and PostgreSQL does not run the COMMIT in the same message.
        checked = "WITH written AS ({} RETURNING 1) SELECT 1 / count(*){{seqscan_on}} FROM written"
        # For this query, only completed keys can be expired, so the query does not look at the steps of the key.
        k = self._sql.k
        due = f"{k['status']} = '{Status.COMPLETED.value}' AND {k['expires_at']} <= {self._sql.clock}"
        texts = {
            "claim": f"{self._insert_sql}{{seqscan_on}}",
            "read": self._read_sql(due),
            "complete": checked.format(self._sql.complete),
            "release": checked.format(self._sql.release),
        }
        return {name: Statement(name, text) for name, text in texts.items()}

    def explain(self, error: DatabaseError) -> None:
        if self.code(error) == OUT_OF_SHARED_MEMORY:
            raise IdempotencyConfigurationError(
                f"PostgreSQL has no room for another lock ({str(error).strip()!r}). Each claim holds one until its "
                "transaction ends. If a job makes thousands of keyed calls in one transaction, let the job commit in "
                "batches: one transaction for each item is best. Else raise max_locks_per_transaction."
            ) from error
        super().explain(error)

    def has_ended(self, connection: BaseDatabaseWrapper, claimed: Claimed) -> bool:
        # If the view has sent COMMIT, the claim is committed, and the completion will find the claim. So the result is
        # True only if the claim is gone.
        if not self.has_no_transaction(connection):
            return False
        own = f"SELECT 1 FROM {self._sql.table} WHERE {self._sql.fence}"
        return self._fetch(own, values_of_claim(claimed)) is None

    def has_no_transaction(self, connection: BaseDatabaseWrapper) -> bool:
        # psycopg 3 sends another BEGIN before the next statement, unless the view has switched autocommit on. psycopg2
        # does not notice the end of the transaction, and sends no other BEGIN.
        raw: Any = connection.connection
        begins = hasattr(raw, "pgconn") and not raw.autocommit
        if raw is None or begins or connection.closed_in_transaction:
            return False
        return bool(raw.info.transaction_status == IDLE)

    def has_begun(self, connection: BaseDatabaseWrapper) -> bool:
        raw: Any = connection.connection
        return raw is not None and raw.info.transaction_status in (IN_TRANSACTION, IN_ERROR)

    def is_broken(self, connection: BaseDatabaseWrapper) -> bool:
        # Sometimes the server refuses all statements of the transaction, although Django has not noticed an error.
        raw: Any = connection.connection
        aborted = raw.info.transaction_status == IN_ERROR
        return bool(aborted or connection.needs_rollback or connection.closed_in_transaction)

    @cached_property
    def _insert_sql(self) -> str:
        """Insert a new row under the advisory lock, unless the key is stored already.

        If another transaction has the advisory lock, the statement does not wait, and returns no row.

        Without NOT EXISTS, every replay would take a number from the sequence, and write that number to the WAL.
        """
        sql = self._sql
        row = {**sql.new_row}
        for name in ("key_hash", "scope_hash", "scope", "operation", "key", "fingerprint", "policy", "worker"):
            row[sql.k[name]] += f"::{CASTS.get(name, 'text')}"
        return (
            f"INSERT INTO {sql.table} ({', '.join(row)}) SELECT {', '.join(row.values())} "
            f"WHERE NOT EXISTS ({sql.seen}) AND pg_try_advisory_xact_lock(%(scope_hash)s::bigint) "
            f"ON CONFLICT ({sql.k['key_hash']}, {sql.k['scope_hash']}) DO NOTHING RETURNING {sql.k['id']}"
        )

    def _read_sql(self, expired: str, free: str = "") -> str:
        """Read the row, and try the advisory lock if no key is stored, or the stored row is `free` to be claimed.

        The statement always returns one row. If no key is stored, the columns of that row are NULL. Sometimes the
        snapshot of the read is older than the lock. So if the lock is taken but no key is found, the store tries the
        INSERT again.
        """
        sql = self._sql
        return (
            f"SELECT CASE WHEN {sql.k['id']} IS NULL{free} THEN pg_try_advisory_xact_lock(%(scope_hash)s::bigint) END, "
            f"{sql.stored_key(expired)} FROM (SELECT 1) AS one LEFT JOIN {sql.table} ON {sql.same_hashes}"
        )

    def _insert(self, wanted: ClaimRequest) -> int | None:
        row = self._fetch(self._insert_sql, values_of(wanted))
        return None if row is None else row[0]

    def _read(self, wanted: ClaimRequest) -> StoredKey | None:
        sql = self._sql
        free = f" OR {sql.k['status']} = '{Status.FAILED.value}' OR {sql.lapsed} OR {sql.expired}"
        locked, *row = self._fetch(self._read_sql(sql.expired, free), values_of(wanted))
        if locked is False:
            raise KeyLocked
        return None if row[0] is None else as_stored_key(row)

    def purge(self, batch_size: int, not_before: Any = None) -> tuple[int, Any]:
        # PostgreSQL guesses that a condition with two limits on one column fits 0.5 % of the table. Because of this
        # guess, the planner sometimes reads and sorts all expired rows in every batch. It is faster to read rows in the
        # order of the index.
        self._fetch(WALK_INDEXES)
        return super().purge(batch_size, not_before)

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


class CitusStore(PostgreSQLStore):
    """PostgreSQL with the Citus extension: a schema for each tenant, and each schema on one of several nodes.

    The key commits together with the tenant's other rows on one node, in one phase. If a view writes to several nodes,
    Citus commits in two phases. Each statement of this class is a "router query": Citus sends the unchanged statement
    to the node of the schema. This class uses no INSERT … SELECT, because Citus can run it on another node.
    """

    def check(self) -> Iterable[CheckMessage]:
        return [*super().check(), *check_distribution(self.connection)]

    def claim(self, wanted: ClaimRequest) -> ClaimOutcome:
        # This class does not put several statements into one message, because the messages between the nodes take
        # longer than the messages to the first node.
        return Store.claim(self, wanted)

    def _insert(self, wanted: ClaimRequest) -> int | None:
        # The read takes the advisory lock on the node that has the row. All duplicates of a request are sent to the
        # node that has the row, so they find the lock.
        if self._read(wanted) is not None:
            return None
        sql = self._sql
        keys = f"{sql.k['key_hash']}, {sql.k['scope_hash']}"
        row = self._fetch(f"{sql.insert()} ON CONFLICT ({keys}) DO NOTHING RETURNING {sql.k['id']}", values_of(wanted))
        return None if row is None else int(row[0])
