"""SQLite: one writer at a time, so the transaction that writes holds every key."""

from __future__ import annotations

import json
import sqlite3
from functools import cached_property
from typing import TYPE_CHECKING, Any

from django.db import DatabaseError

from ..protocol.claims import ClaimRequest
from ..protocol.decision import StoredKey
from ..protocol.outcomes import Row
from .dialect import Dialect
from .queries import as_new_row
from .store import Store

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper

UNKNOWN = ("no such table:", "no such column:", "has no column named")
"""SQLite has one code for all errors in a statement."""
BUSY = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED})


# Text that sorts as Django's own datetimes do. Percent signs are doubled for the parameter substitution.
CLOCK = "strftime('%%Y-%%m-%%d %%H:%%M:%%f', 'now')"
LATER = "strftime('%%Y-%%m-%%d %%H:%%M:%%f', 'now', %s || ' seconds')"
# SQLite's times have milliseconds. What a float adds to them is rounding.
SECONDS_UNTIL = "round((julianday({}) - julianday('now')) * 86400, 3)"


class SQLiteStore(Store):
    vendor = "sqlite"
    dialect = Dialect(clock=CLOCK, clock_once=CLOCK, later=LATER, seconds_until=SECONDS_UNTIL)

    def is_broken(self, connection: BaseDatabaseWrapper) -> bool:
        # ON CONFLICT ROLLBACK and RAISE(ROLLBACK) end the whole transaction, and `executescript` commits it. Django
        # does not notice. From then on, SQLite commits each statement by itself.
        return super().is_broken(connection) or self.has_no_transaction(connection)

    def has_no_transaction(self, connection: BaseDatabaseWrapper) -> bool:
        raw: Any = connection.connection
        return raw is not None and not connection.closed_in_transaction and not raw.in_transaction

    def has_begun(self, connection: BaseDatabaseWrapper) -> bool:
        raw: Any = connection.connection
        return raw is not None and raw.in_transaction

    def may_repeat(self, error: DatabaseError) -> bool:
        return False

    def is_unmigrated(self, error: DatabaseError) -> bool:
        return any(words in str(error) for words in UNKNOWN)

    def is_busy(self, error: DatabaseError) -> bool:
        # The low byte is the primary result code. The lock may be about another key: SQLite does not say.
        return getattr(error.__cause__, "sqlite_errorcode", 0) & 0xFF in BUSY

    @cached_property
    def _insert_sql(self) -> str:
        """Insert a new row, unless the key is stored already."""
        sql = self._sql
        return (
            f"INSERT INTO {sql.table} ({sql.new_row}) "
            f"VALUES (%s, %s, %s, %s, %s, %s, %s, %s, 1, {CLOCK}, {CLOCK}, {LATER}, {LATER}) "
            f"ON CONFLICT ({sql.k['key_hash']}, {sql.k['scope_hash']}) DO NOTHING"
        )

    @cached_property
    def _read_expired_sql(self) -> str:
        """The ids of expired rows, oldest first. Parameter: how many."""
        sql = self._sql
        return f"SELECT {sql.k['id']} FROM {sql.table} WHERE {sql.expired} ORDER BY {sql.k['expires_at']} LIMIT %s"

    def _insert(self, wanted: ClaimRequest) -> int | None:
        with self._cursor() as cursor:
            cursor.execute(self._insert_sql, as_new_row(wanted))
            return cursor.lastrowid if cursor.rowcount == 1 else None

    def _read(self, wanted: ClaimRequest) -> StoredKey | None:
        return self._stored(self._sql.look, [wanted.identity.key_hash, wanted.identity.scope_hash])

    def _take_over(self, row: Row, wanted: ClaimRequest) -> int | None:
        params = [wanted.fingerprint, wanted.policy, wanted.ttl, wanted.lease, *row.found_by]
        if self._execute(self._sql.take_over, params) != 1:
            return None
        return int(self._fetch(self._sql.read_attempt, row.found_by)[0])

    def purge(self, batch_size: int, not_before: Any = None) -> tuple[int, Any]:
        sql = self._sql
        with self._cursor() as cursor:
            # Read the ids once for both tables: the clock goes on between two statements.
            cursor.execute(self._read_expired_sql, [batch_size])
            ids = json.dumps([row[0] for row in cursor.fetchall()])
            for table, column in ((sql.steps, sql.s["key"]), (sql.table, sql.k["id"])):
                cursor.execute(f"DELETE FROM {table} WHERE {column} IN (SELECT value FROM json_each(%s))", [ids])
            return cursor.rowcount, None
