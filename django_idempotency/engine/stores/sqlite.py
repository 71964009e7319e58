"""The store for SQLite, where one writer at a time locks all keys."""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING, Any

from django.db import Error

from ..protocol.outcomes import ClaimRequest
from .queries import values_of
from .store import Store

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper

UNKNOWN = ("no such table:", "no such column:", "has no column named")
"""How SQLite reports a missing table or column. All invalid statements share one error code."""


class SQLiteStore(Store):
    # SQLite doesn't say which key is locked, so the cause may be another key.
    busy = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED})
    down = frozenset({sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY})
    unmigrated = frozenset(UNKNOWN)

    def code(self, error: Error) -> object:
        # The primary result code is in the lowest eight bits.
        code = getattr(error.__cause__, "sqlite_errorcode", 0) & 0xFF
        return next((words for words in UNKNOWN if words in str(error)), code)

    def is_broken(self, connection: BaseDatabaseWrapper) -> bool:
        # ON CONFLICT ROLLBACK and RAISE(ROLLBACK) end the transaction, and so does `executescript`, which commits it.
        # Django doesn't notice, and every later statement is committed by itself.
        return super().is_broken(connection) or self.has_no_transaction(connection)

    def has_begun(self, connection: BaseDatabaseWrapper) -> bool:
        raw: Any = connection.connection
        return raw is not None and raw.in_transaction

    def _insert(self, request: ClaimRequest) -> int | None:
        with self.connection.cursor() as cursor:
            cursor.execute(self._sql.insert_if_new, values_of(request))
            return cursor.lastrowid if cursor.rowcount == 1 else None

    def purge(self, batch_size: int, not_before: Any = None) -> tuple[int, Any]:
        # `not_before` is left out, because SQLite compares times as text, and the driver writes more digits than
        # SQLite's own clock. Each batch starts at the oldest expired key.
        return super().purge(batch_size)[0], None
