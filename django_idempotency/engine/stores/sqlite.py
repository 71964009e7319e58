"""SQLite: one writer at a time, so the transaction that writes holds every key."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from django.db import DatabaseError

from ..protocol.outcomes import ClaimRequest
from .queries import Dialect, values_of
from .server_checks import check_tables
from .store import Store

if TYPE_CHECKING:
    from django.core.checks import CheckMessage
    from django.db.backends.base.base import BaseDatabaseWrapper

UNKNOWN = ("no such table:", "no such column:", "has no column named")
"""SQLite has one code for all errors in a statement."""
BUSY = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED})
NOW = "strftime('%%Y-%%m-%%d %%H:%%M:%%f', 'now'"
"""Text that sorts as Django's own datetimes do. Percent signs are doubled for the parameter substitution."""


class SQLiteStore(Store):
    dialect = Dialect(
        clock=f"{NOW})",
        later=f"{NOW}, %s || ' seconds')",
        # SQLite's times have milliseconds. What a float adds to them is rounding.
        seconds_until="round((julianday({}) - julianday('now')) * 86400, 3)",
        delete_by_ids="DELETE FROM {table} WHERE {column} IN (SELECT value FROM json_each(%(ids)s))",
    )

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

    def is_unmigrated(self, error: DatabaseError) -> bool:
        return any(words in str(error) for words in UNKNOWN)

    def is_busy(self, error: DatabaseError) -> bool:
        # The low byte is the primary result code. The lock may be about another key: SQLite does not say.
        return getattr(error.__cause__, "sqlite_errorcode", 0) & 0xFF in BUSY

    def check(self) -> Iterable[CheckMessage]:
        return check_tables(self.connection)

    def _insert(self, wanted: ClaimRequest) -> int | None:
        sql = self._sql
        keys = f"{sql.k['key_hash']}, {sql.k['scope_hash']}"
        with self.connection.cursor() as cursor:
            cursor.execute(f"{sql.insert()} ON CONFLICT ({keys}) DO NOTHING", values_of(wanted))
            return cursor.lastrowid if cursor.rowcount == 1 else None

    def purge(self, batch_size: int, not_before: Any = None) -> tuple[int, Any]:
        return super().purge(batch_size)[0], None
