"""MariaDB: the unique index itself says who is in flight, by a lock wait that is cut short.

A duplicate of a running request would wait on the index record of the uncommitted row; with a lock wait timeout
of `wait` seconds (0: not at all) it gets error 1205, which rolls back that one statement only.
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
from ..protocol.outcomes import Claimed, Conflicted, InDoubt
from .base import Held, Store
from .statements import Row

SEEN = frozenset({1048, 1062})
"""What an INSERT of a key says that is there: no NULL for `key_hash`, which is NULL then, and duplicate entry."""
LOCK_WAIT_TIMEOUT = 1205
DEADLOCK = 1213
UNKNOWN = frozenset({1054, 1146})
"""Unknown column, no such table."""
TAKE_OVER_WAIT = 5
"""Seconds. Rivals for an expired row share its lock and want it alone: InnoDB's deadlock detection needs them to
wait in order to pick a winner, which it does at once."""


class MariaDBStore(Store):
    vendor = "mysql"
    clock = "UTC_TIMESTAMP(6)"
    later = "DATE_ADD(UTC_TIMESTAMP(6), INTERVAL %s SECOND)"
    skip_locked = "FOR UPDATE SKIP LOCKED"
    lock = "FOR UPDATE"
    # Not SKIP LOCKED: rivals hold the share lock of their reading, and all of them would skip.
    lock_or_skip = f"FOR UPDATE WAIT {TAKE_OVER_WAIT}"
    share = "LOCK IN SHARE MODE"
    # In a small table the index on expires_at looks as good, and its whole range would be locked: other expired keys.
    by_id = "FORCE INDEX (PRIMARY)"

    def may_repeat(self, error: DatabaseError) -> bool:
        # A deadlock has rolled back the whole transaction.
        return _code(error) == DEADLOCK

    def is_unmigrated(self, error: DatabaseError) -> bool:
        return _code(error) in UNKNOWN

    @cached_property
    def _insert_sql(self) -> str:
        sql = self._sql
        return (
            "SET STATEMENT innodb_lock_wait_timeout = %s FOR "
            f"INSERT INTO {sql.table} ({sql.columns}) "
            f"VALUES ({{key_hash}}, %s, %s, %s, %s, %s, %s, 1, {self.clock}, {self.later}, {self.later})"
        )

    @cached_property
    def _seen_sql(self) -> str:
        return f"SELECT 1 FROM {self._sql.table} WHERE {self._sql.mine}"

    @cached_property
    def _read_sql(self) -> str:
        sql = self._sql
        # A share lock reads what is committed now; a plain read would show the past under REPEATABLE READ.
        return (
            "SET STATEMENT innodb_lock_wait_timeout = %s FOR "
            f"SELECT {sql.row} FROM {sql.table} WHERE {sql.mine} LOCK IN SHARE MODE"
        )

    def _insert(self, claim: ClaimRequest) -> int | None:
        hashes = [claim.identity.key_hash, claim.identity.scope_hash]
        with self._cursor() as cursor:
            # An INSERT that meets its duplicate locks the gap beside it until the transaction ends, even under READ
            # COMMITTED: a view that runs under an expired key would turn other new keys away. So look first. Under READ
            # COMMITTED, Django's default, that can be done in the INSERT itself; elsewhere it would lock the gap, too.
            # Not INSERT ... SELECT: it waits for the table's AUTO-INC lock, and we do not wait.
            key_hash, params = "%s", self._new_row(claim)
            if getattr(self.connection, "isolation_level", None) == "read committed":
                key_hash = f"(SELECT %s FROM DUAL WHERE NOT EXISTS ({self._seen_sql}))"
                params[1:1] = hashes
            else:
                cursor.execute(self._seen_sql, hashes)
                if cursor.fetchone() is not None:
                    return None
            try:
                with _held_after_waiting():
                    cursor.execute(self._insert_sql.format(key_hash=key_hash), [math.ceil(claim.wait), *params])
            except IntegrityError as error:
                if _code(error) not in SEEN:
                    raise
                return None
            return int(cursor.lastrowid)

    def _read(self, claim: ClaimRequest) -> Row | None:
        identity = claim.identity
        with _held_after_waiting():
            return self._fetch(self._read_sql, [math.ceil(claim.wait), identity.key_hash, identity.scope_hash])

    def _take_over(self, row_id: int, claim: ClaimRequest) -> int | None:
        sql = self._sql
        with self._cursor() as cursor:
            with _held_after_waiting():
                cursor.execute(
                    f"SET STATEMENT innodb_lock_wait_timeout = %s FOR {sql.take_over}",
                    [TAKE_OVER_WAIT, claim.fingerprint, claim.ttl, claim.lease, row_id],
                )
            if cursor.rowcount != 1:
                return None
            cursor.execute(f"SELECT {sql.column['attempt']} FROM {sql.table} WHERE {sql.column['id']} = %s", [row_id])
            return int(cursor.fetchone()[0])

    def _resume(self, row: Row, claim: ClaimRequest) -> Claimed | Conflicted | InDoubt:
        with _held_after_waiting():
            return super()._resume(row, claim)

    def purge(self, batch_size: int, not_before: Any = None) -> tuple[int, Any]:
        sql = self._sql
        id_, expires_at = sql.column["id"], sql.column["expires_at"]
        with self._cursor() as cursor:
            # Two statements: MariaDB takes no LIMIT in a subquery of DELETE, nor SKIP LOCKED in DELETE itself.
            cursor.execute(
                f"SELECT {id_}, {expires_at} FROM {sql.table} WHERE {sql.is_expired} "
                f"AND {expires_at} >= COALESCE(%s, '1000-01-01') ORDER BY {expires_at} LIMIT %s {self.skip_locked}",
                [not_before, batch_size],
            )
            rows = cursor.fetchall()
            if rows:
                ids = json.dumps([row[0] for row in rows])
                # Row by row through the index: for an IN list the optimizer may scan the table, and would wait for
                # every row that somebody else holds.
                for table, column in ((sql.steps, sql.step["key"]), (sql.table, id_)):
                    cursor.execute(
                        f"DELETE {table} FROM JSON_TABLE(%s, '$[*]' COLUMNS (purged_id BIGINT PATH '$')) AS purged "
                        f"STRAIGHT_JOIN {table} ON {table}.{column} = purged.purged_id",
                        [ids],
                    )
        return len(rows), rows[-1][1] if rows else not_before


@contextmanager
def _held_after_waiting() -> Iterator[None]:
    """A lock that was not to be had in time means that somebody else is at work on the key."""
    try:
        yield
    except OperationalError as error:
        if _code(error) != LOCK_WAIT_TIMEOUT:
            raise
        raise Held from error


def _code(error: DatabaseError) -> int | None:
    return error.args[0] if error.args else None
