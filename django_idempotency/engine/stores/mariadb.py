"""MariaDB: a lock wait on the unique index tells which key is in flight. A timeout cuts the wait short.

A duplicate of a running request would wait on the index record of the uncommitted row. Without `wait`, the lock wait
timeout is 0, and the duplicate gets error 1205. With `wait`, the time of the statement is limited, and the duplicate
gets error 1969: a lock wait timeout has whole seconds only. Both errors roll back the one statement. The exception is a
server with innodb_rollback_on_timeout, where 1205 rolls back the transaction.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cached_property
from math import ceil
from typing import TYPE_CHECKING, Any

from django.db import DatabaseError, IntegrityError, OperationalError

from ..protocol.claims import ClaimRequest
from ..protocol.decision import StoredKey
from ..protocol.outcomes import Claimed, Conflicted, InDoubt, Row
from .dialect import Dialect
from .lease_queries import LeaseQueries
from .leases import lease_lost
from .mariadb_checks import check_mariadb
from .queries import as_new_row
from .store import KeyLocked, Store

if TYPE_CHECKING:
    from django.core.checks import CheckMessage

SEEN = frozenset({1048, 1062})
"""Errors meaning the key exists: 1048 (our subselect found it, so key_hash is NULL), 1062 (duplicate entry)."""
LOCK_WAIT_TIMEOUT = 1205
GAVE_UP_WAITING = frozenset({LOCK_WAIT_TIMEOUT, 1969})
"""The lock was not free in time; the statement took too long (by our limit, or by the project's)."""
ROLLED_BACK = frozenset({1020, 1213})
"""The whole transaction is gone. 1020: another transaction has changed a row since our snapshot, under REPEATABLE READ
with innodb_snapshot_isolation, MariaDB's default since 11.6. 1213: a deadlock. Galera has that code also for a
transaction that another node was faster to commit."""
UNKNOWN = frozenset({1054, 1146})
"""Unknown column, no such table."""
TAKE_OVER_WAIT = 5
"""Seconds. Rivals for an expired row all hold a share lock on it, and each wants to lock it alone. InnoDB's deadlock
detection then picks a winner at once, but only among transactions that wait. So this is beside the caller's `wait`."""
SHORTEST, LONGEST = 0.001, 365 * 86400.0
"""Seconds. A statement time of 0 would be no limit, and the server takes no longer one than a year."""
CLOCK = "UTC_TIMESTAMP(6)"
LATER = "DATE_ADD(UTC_TIMESTAMP(6), INTERVAL %s SECOND)"


class MariaDBLeaseQueries(LeaseQueries):
    @cached_property
    def touch(self) -> str:
        """Change the claimed row in a way that means nothing. Parameters: the fence's."""
        until = self.k["locked_until"]
        return f"UPDATE {self.table} SET {until} = {until} + INTERVAL 1 MICROSECOND WHERE {self.fence}"


class MariaDBStore(Store):
    vendor = "mysql"
    dialect = Dialect(
        clock=CLOCK,
        clock_once=CLOCK,
        later=LATER,
        skip_locked="FOR UPDATE SKIP LOCKED",
        lock="FOR UPDATE",
        # Not SKIP LOCKED: each rival holds the share lock of its reading, so all of them would skip the row.
        lock_or_skip=f"FOR UPDATE WAIT {TAKE_OVER_WAIT}",
        share="LOCK IN SHARE MODE",
        # In a small table the optimizer may choose the index on expires_at, and lock all of its range.
        by_id="FORCE INDEX (PRIMARY)",
    )

    def may_repeat(self, error: DatabaseError) -> bool:
        return self.was_rolled_back(error)

    def was_rolled_back(self, error: DatabaseError) -> bool:
        return _code(error) in ROLLED_BACK

    def is_unmigrated(self, error: DatabaseError) -> bool:
        return _code(error) in UNKNOWN

    def fence(self, claimed: Claimed) -> None:
        # Not a locking SELECT: a Galera node compares with the other nodes what a transaction has changed, and never
        # what the transaction has locked.
        self._execute_or(lease_lost, self._lease_sql.touch, claimed.fence)

    def start_write(self, claimed: Claimed, name: str) -> None:
        self.fence(claimed)
        super().start_write(claimed, name)

    def _look_sql(self) -> str:
        # A Galera node ends a transaction before the node shows what the winner has committed. So wait for that.
        on_galera = self._fetch("SHOW VARIABLES LIKE 'wsrep_on'", []) == ("wsrep_on", "ON")
        return f"SET STATEMENT wsrep_sync_wait = 1 FOR {self._sql.look}" if on_galera else self._sql.look

    @cached_property
    def _lease_sql(self) -> LeaseQueries:
        return MariaDBLeaseQueries(self.dialect, self._quote)

    @cached_property
    def _insert_sql(self) -> str:
        """Insert a new row."""
        sql = self._sql
        return (
            f"INSERT INTO {sql.table} ({sql.new_row}) "
            f"VALUES ({{key_hash}}, %s, %s, %s, %s, %s, %s, 1, {CLOCK}, {LATER}, {LATER})"
        )

    @cached_property
    def _seen_sql(self) -> str:
        """Whether the key is stored already. Parameters: key_hash, scope_hash."""
        return f"SELECT 1 FROM {self._sql.table} WHERE {self._sql.same_hashes}"

    @cached_property
    def _read_sql(self) -> str:
        """Read the row as committed now. A plain read would show the past under REPEATABLE READ."""
        sql = self._sql
        return f"SELECT {sql.stored_key} FROM {sql.table} WHERE {sql.same_hashes} LOCK IN SHARE MODE"

    @cached_property
    def _read_expired_sql(self) -> str:
        """Expired rows that no other transaction holds, oldest first. Parameters: not before, how many."""
        sql = self._sql
        expires_at = sql.k["expires_at"]
        return (
            f"SELECT {sql.k['id']}, {expires_at} FROM {sql.table} WHERE {sql.expired} "
            f"AND {expires_at} >= COALESCE(%s, '1000-01-01') "
            f"ORDER BY {expires_at} LIMIT %s {self.dialect.skip_locked}"
        )

    def _insert(self, wanted: ClaimRequest) -> int | None:
        hashes = [wanted.identity.key_hash, wanted.identity.scope_hash]
        # An INSERT that meets its duplicate locks the gap beside the row until the transaction ends, even under READ
        # COMMITTED. A view that runs under an expired key would then block other new keys. So look first. Under READ
        # COMMITTED, Django's default, a subselect in the INSERT itself can look; elsewhere it would lock the gap, too.
        # Not INSERT ... SELECT: that statement waits for the table's AUTO-INC lock, and we do not wait.
        key_hash, params = "%s", as_new_row(wanted)
        if getattr(self.connection, "isolation_level", None) == "read committed":
            key_hash = f"(SELECT %s FROM DUAL WHERE NOT EXISTS ({self._seen_sql}))"
            params[1:1] = hashes
        elif self._fetch(self._seen_sql, hashes) is not None:
            return None
        limit, seconds = _limit(wanted.left)
        try:
            with self._locked_after_waiting(), self._cursor() as cursor:
                cursor.execute(limit + self._insert_sql.format(key_hash=key_hash), [*seconds, *params])
                return int(cursor.lastrowid)
        except IntegrityError as error:
            if _code(error) not in SEEN:
                raise
            return None

    def _read(self, wanted: ClaimRequest) -> StoredKey | None:
        limit, seconds = _limit(wanted.left)
        with self._locked_after_waiting():
            params = [*seconds, wanted.identity.key_hash, wanted.identity.scope_hash]
            return self._stored(limit + self._read_sql, params)

    def _take_over(self, row: Row, wanted: ClaimRequest) -> int | None:
        take_over = f"SET STATEMENT innodb_lock_wait_timeout = %s FOR {self._sql.take_over}"
        params = [TAKE_OVER_WAIT, wanted.fingerprint, wanted.ttl, wanted.lease, *row.found_by]
        with self._locked_after_waiting():
            taken = self._execute(take_over, params)
        return int(self._fetch(self._sql.read_attempt, row.found_by)[0]) if taken == 1 else None

    def _resume(self, stored: StoredKey, wanted: ClaimRequest) -> Claimed | Conflicted | InDoubt:
        with self._locked_after_waiting():
            return super()._resume(stored, wanted)

    @contextmanager
    def _locked_after_waiting(self) -> Iterator[None]:
        """A lock that was not free in time means that another transaction works on the key."""
        try:
            yield
        except OperationalError as error:
            if _code(error) not in GAVE_UP_WAITING or self._has_rolled_back_a_caller(error):
                raise
            raise KeyLocked from error

    def _has_rolled_back_a_caller(self, error: OperationalError) -> bool:
        """Whether the caller's writes before the claim are gone. A mere conflict would hide that."""
        if _code(error) != LOCK_WAIT_TIMEOUT or self.is_outermost():
            return False
        return bool(self._fetch("SELECT @@innodb_rollback_on_timeout", [])[0])

    def check(self) -> Iterable[CheckMessage]:
        return check_mariadb(self.connection)

    def purge(self, batch_size: int, not_before: Any = None) -> tuple[int, Any]:
        sql = self._sql
        with self._cursor() as cursor:
            # Two statements: MariaDB takes no LIMIT in a subquery of DELETE, and no SKIP LOCKED in DELETE itself.
            cursor.execute(self._read_expired_sql, [not_before, batch_size])
            rows = cursor.fetchall()
            if rows:
                ids = json.dumps([row[0] for row in rows])
                # Row by row through the index. For an IN list the optimizer may scan the table, and would wait for
                # every row that another transaction holds.
                for table, column in ((sql.steps, sql.s["key"]), (sql.table, sql.k["id"])):
                    cursor.execute(
                        f"DELETE {table} FROM JSON_TABLE(%s, '$[*]' COLUMNS (purged_id BIGINT PATH '$')) AS purged "
                        f"STRAIGHT_JOIN {table} ON {table}.{column} = purged.purged_id",
                        [ids],
                    )
        return len(rows), rows[-1][1] if rows else not_before


def _limit(seconds: float) -> tuple[str, list[Any]]:
    """The beginning of a statement that waits for locks for so many seconds at most, and its parameters."""
    if not seconds:
        return "SET STATEMENT innodb_lock_wait_timeout = 0 FOR ", []
    seconds = min(max(seconds, SHORTEST), LONGEST)
    # The lock wait timeout must not end the wait: it may roll back the caller's transaction.
    return "SET STATEMENT max_statement_time = %s, innodb_lock_wait_timeout = %s FOR ", [seconds, ceil(seconds) + 1]


def _code(error: DatabaseError) -> int | None:
    return error.args[0] if error.args else None
