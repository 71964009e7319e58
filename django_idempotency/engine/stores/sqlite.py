"""SQLite: one writer at a time, so whoever holds the transaction holds every key."""

from __future__ import annotations

import json
import sqlite3
from functools import cached_property
from typing import Any

from django.db import DatabaseError

from ..protocol.claims import ClaimRequest
from .base import Store
from .statements import Row

UNKNOWN = ("no such table:", "no such column:", "has no column named")
"""SQLite has one code for all errors in a statement."""
BUSY = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED})


class SQLiteStore(Store):
    vendor = "sqlite"
    # Text that sorts as Django's own datetimes do. Percent signs are doubled for the parameter substitution.
    clock = "strftime('%%Y-%%m-%%d %%H:%%M:%%f', 'now')"
    later = "strftime('%%Y-%%m-%%d %%H:%%M:%%f', 'now', %s || ' seconds')"

    def may_repeat(self, error: DatabaseError) -> bool:
        return False

    def is_unmigrated(self, error: DatabaseError) -> bool:
        return any(words in str(error) for words in UNKNOWN)

    def is_busy(self, error: DatabaseError) -> bool:
        # The low byte is the primary result code. It may be about another key: nobody can tell.
        return getattr(error.__cause__, "sqlite_errorcode", 0) & 0xFF in BUSY

    @cached_property
    def _insert_sql(self) -> str:
        sql = self._sql
        return (
            f"INSERT INTO {sql.table} ({sql.columns}) "
            f"VALUES (%s, %s, %s, %s, %s, %s, %s, 1, {self.clock}, {self.later}, {self.later}) "
            f"ON CONFLICT ({sql.column['key_hash']}, {sql.column['scope_hash']}) DO NOTHING"
        )

    def _insert(self, claim: ClaimRequest) -> int | None:
        with self._cursor() as cursor:
            cursor.execute(self._insert_sql, self._new_row(claim))
            return cursor.lastrowid if cursor.rowcount == 1 else None

    def _read(self, claim: ClaimRequest) -> Row | None:
        return self._fetch(self._sql.look, [claim.identity.key_hash, claim.identity.scope_hash])

    def _take_over(self, row_id: int, claim: ClaimRequest) -> int | None:
        sql = self._sql
        with self._cursor() as cursor:
            cursor.execute(sql.take_over, [claim.fingerprint, claim.ttl, claim.lease, row_id])
            if cursor.rowcount != 1:
                return None
            cursor.execute(f"SELECT {sql.column['attempt']} FROM {sql.table} WHERE {sql.column['id']} = %s", [row_id])
            return int(cursor.fetchone()[0])

    def purge(self, batch_size: int, not_before: Any = None) -> tuple[int, Any]:
        sql = self._sql
        id_, expires_at = sql.column["id"], sql.column["expires_at"]
        with self._cursor() as cursor:
            # The ids once, for both tables: the clock goes on between two statements.
            cursor.execute(
                f"SELECT {id_} FROM {sql.table} WHERE {sql.is_expired} ORDER BY {expires_at} LIMIT %s", [batch_size]
            )
            ids = json.dumps([row[0] for row in cursor.fetchall()])
            for table, column in ((sql.steps, sql.step["key"]), (sql.table, id_)):
                cursor.execute(f"DELETE FROM {table} WHERE {column} IN (SELECT value FROM json_each(%s))", [ids])
            return cursor.rowcount, None
