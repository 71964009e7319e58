"""MariaDB: a lock wait on the unique index tells which key is in flight. A timeout cuts the wait short.

A duplicate of a running request would wait on the index record of the uncommitted row. With a lock wait timeout of
`wait` seconds (0: no wait at all) the duplicate gets error 1205, which rolls back that one statement only.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any

from django.db import DatabaseError, IntegrityError, OperationalError

from ..protocol.claims import ClaimRequest
from ..protocol.decision import StoredKey
from ..protocol.outcomes import Claimed, Conflicted, InDoubt
from .dialect import Dialect
from .lease_queries import LeaseQueries
from .leases import lease_lost
from .queries import as_new_row
from .store import KeyLocked, Store

SEEN = frozenset({1048, 1062})
"""Errors meaning the key exists: 1048 (our subselect found it, so key_hash is NULL), 1062 (duplicate entry)."""
LOCK_WAIT_TIMEOUT = 1205
DEADLOCK = 1213
UNKNOWN = frozenset({1054, 1146})
"""Unknown column, no such table."""
TAKE_OVER_WAIT = 5
"""Seconds. Rivals for an expired row all hold a share lock on it, and each wants to lock it alone. InnoDB's deadlock
detection then picks a winner at once, but only among transactions that wait."""
CLOCK = "UTC_TIMESTAMP(6)"
LATER = "DATE_ADD(UTC_TIMESTAMP(6), INTERVAL %s SECOND)"


class MariaDBLeaseQueries(LeaseQueries):
    @cached_property
    def touch(self) -> str:
        """Change the claimed row in a way that means nothing. Parameters: id, attempt."""
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
        # Galera has one code for a deadlock and for a transaction that another node was faster to commit.
        return _code(error) == DEADLOCK

    def is_unmigrated(self, error: DatabaseError) -> bool:
        return _code(error) in UNKNOWN

    def fence(self, claimed: Claimed) -> None:
        # Not a locking SELECT: a Galera node compares with the other nodes what a transaction has changed, and never
        # what the transaction has locked.
        self._execute_or(lease_lost, self._lease_sql.touch, [claimed.id, claimed.attempt])

    @cached_property
    def _lease_sql(self) -> LeaseQueries:
        return MariaDBLeaseQueries(self.dialect, self._quote)

    @cached_property
    def _insert_sql(self) -> str:
        """Insert a new row, and wait for a rival at most as long as the first parameter says."""
        sql = self._sql
        return (
            "SET STATEMENT innodb_lock_wait_timeout = %s FOR "
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
        return (
            "SET STATEMENT innodb_lock_wait_timeout = %s FOR "
            f"SELECT {sql.stored_key} FROM {sql.table} WHERE {sql.same_hashes} LOCK IN SHARE MODE"
        )

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
        try:
            with _locked_after_waiting(), self._cursor() as cursor:
                cursor.execute(self._insert_sql.format(key_hash=key_hash), [math.ceil(wanted.wait), *params])
                return int(cursor.lastrowid)
        except IntegrityError as error:
            if _code(error) not in SEEN:
                raise
            return None

    def _read(self, wanted: ClaimRequest) -> StoredKey | None:
        identity = wanted.identity
        with _locked_after_waiting():
            return self._stored(self._read_sql, [math.ceil(wanted.wait), identity.key_hash, identity.scope_hash])

    def _take_over(self, row_id: int, wanted: ClaimRequest) -> int | None:
        take_over = f"SET STATEMENT innodb_lock_wait_timeout = %s FOR {self._sql.take_over}"
        with _locked_after_waiting():
            taken = self._execute(take_over, [TAKE_OVER_WAIT, wanted.fingerprint, wanted.ttl, wanted.lease, row_id])
        return int(self._fetch(self._sql.read_attempt, [row_id])[0]) if taken == 1 else None

    def _resume(self, stored: StoredKey, wanted: ClaimRequest) -> Claimed | Conflicted | InDoubt:
        with _locked_after_waiting():
            return super()._resume(stored, wanted)

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


@contextmanager
def _locked_after_waiting() -> Iterator[None]:
    """A lock that was not free in time means that another transaction works on the key."""
    try:
        yield
    except OperationalError as error:
        if _code(error) != LOCK_WAIT_TIMEOUT:
            raise
        raise KeyLocked from error


def _code(error: DatabaseError) -> int | None:
    return error.args[0] if error.args else None
