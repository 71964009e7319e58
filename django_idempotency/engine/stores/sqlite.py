"""The store for SQLite. SQLite allows only one writer at a time, so the transaction of a writer locks all keys."""

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
"""Texts in SQLite's errors for a missing table or column. SQLite has only one error code for all wrong statements."""


class SQLiteStore(Store):
    # SQLite's error about a lock does not tell which key is locked. Perhaps the locked key is not the key of this
    # request.
    busy = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED})
    down = frozenset({sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY})
    unmigrated = frozenset(UNKNOWN)

    def code(self, error: Error) -> object:
        # The lowest eight bits of SQLite's error code are the primary result code.
        found = getattr(error.__cause__, "sqlite_errorcode", 0) & 0xFF
        return next((words for words in UNKNOWN if words in str(error)), found)

    def is_broken(self, connection: BaseDatabaseWrapper) -> bool:
        # ON CONFLICT ROLLBACK and RAISE(ROLLBACK) roll back the whole transaction. `executescript` commits the
        # transaction. Django does not notice that the transaction has ended. After the end of the transaction, SQLite
        # commits each statement separately.
        return super().is_broken(connection) or self.has_no_transaction(connection)

    def has_no_transaction(self, connection: BaseDatabaseWrapper) -> bool:
        raw: Any = connection.connection
        return raw is not None and not connection.closed_in_transaction and not raw.in_transaction

    def has_begun(self, connection: BaseDatabaseWrapper) -> bool:
        raw: Any = connection.connection
        return raw is not None and raw.in_transaction

    def _insert(self, wanted: ClaimRequest) -> int | None:
        with self.connection.cursor() as cursor:
            cursor.execute(self._sql.insert_if_new, values_of(wanted))
            return cursor.lastrowid if cursor.rowcount == 1 else None

    def purge(self, batch_size: int, not_before: Any = None) -> tuple[int, Any]:
        # SQLite compares times as texts. The driver writes times with more digits than the times of SQLite's own clock.
        # So the code must not compare a column with the argument `not_before`. This method does not use `not_before`,
        # so each batch starts with the oldest expired key.
        return super().purge(batch_size)[0], None
