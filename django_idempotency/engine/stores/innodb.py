"""InnoDB, the engine of MariaDB and MySQL: its clock, its errors, a fence, and a cleanup that passes over locks."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

from django.db import DatabaseError, IntegrityError, OperationalError

from ..protocol.claims import ClaimRequest
from ..protocol.outcomes import Completed, Conflicted, InDoubt, Mismatched
from .innodb_checks import check_engines
from .store import KeyLocked, Store

if TYPE_CHECKING:
    from django.core.checks import CheckMessage
    from django.db.backends.base.base import BaseDatabaseWrapper

LOCK_WAIT_TIMEOUT = 1205
DUPLICATE = 1062
SEEN = frozenset({1048, DUPLICATE})
"""Errors meaning the key exists: 1048 (our subselect found it, so key_hash is NULL), or a duplicate entry."""
ROLLED_BACK = frozenset({1020, 1213})
"""The whole transaction is gone. 1020: another transaction has changed a row since our snapshot, under REPEATABLE READ
with innodb_snapshot_isolation, MariaDB's default since 11.6. 1213: a deadlock. Galera has that code also for a
transaction that another node was faster to commit."""
UNKNOWN = frozenset({1054, 1146})
"""Unknown column, no such table."""
CLOCK = "UTC_TIMESTAMP(6)"
LATER = "DATE_ADD(UTC_TIMESTAMP(6), INTERVAL %s SECOND)"
SECONDS_UNTIL = f"TIMESTAMPDIFF(MICROSECOND, {CLOCK}, {{}}) / 1000000"


class InnoDBStore(Store):
    vendor = "mysql"
    gave_up: ClassVar[frozenset[int]]
    """Errors of a statement that another transaction has held up."""

    def may_repeat(self, error: DatabaseError) -> bool:
        return self.was_rolled_back(error)

    def was_rolled_back(self, error: DatabaseError) -> bool:
        return _code(error) in ROLLED_BACK

    def has_no_transaction(self, connection: BaseDatabaseWrapper) -> bool:
        # Django has switched the server's autocommit off. A connection that was made anew behind its back has it on.
        raw: Any = connection.connection
        return raw is not None and not connection.closed_in_transaction and bool(raw.open and raw.get_autocommit())

    def is_unmigrated(self, error: DatabaseError) -> bool:
        return _code(error) in UNKNOWN

    def check(self) -> Iterable[CheckMessage]:
        return check_engines(self.connection)

    @property
    def reads_committed(self) -> bool:
        """Whether transactions are READ COMMITTED, Django's default. Then a read of a missing key locks nothing."""
        return self._isolation == "read committed"

    @property
    def _isolation(self) -> str:
        """The isolation level of the project's settings, in lower case. Empty: the server's own."""
        options = self.connection.settings_dict["OPTIONS"]
        return (options.get("isolation_level", "read committed") or "").lower()

    def look(self, wanted: ClaimRequest) -> Completed | Mismatched | Conflicted | InDoubt:
        if self._isolation == "read uncommitted":
            return Conflicted()  # a plain read would show a result that may still be rolled back
        return super().look(wanted)

    # --- the pieces of SQL

    @cached_property
    def _insert_sql(self) -> str:
        """Insert a new row. The SQL of its key_hash is still to be put in."""
        sql = self._sql
        return (
            f"INSERT INTO {sql.table} ({sql.new_row}) "
            f"VALUES ({{key_hash}}, %s, %s, %s, %s, %s, %s, %s, 1, {CLOCK}, {CLOCK}, {LATER}, {LATER})"
        )

    @cached_property
    def _seen_sql(self) -> str:
        """Whether the key is stored already. Parameters: key_hash, scope_hash."""
        return f"SELECT 1 FROM {self._sql.table} WHERE {self._sql.same_hashes}"

    @cached_property
    def _read_expired_sql(self) -> str:
        """Expired rows that no other transaction holds, oldest first. Parameters: not before, how many."""
        sql = self._sql
        expires_at = sql.k["expires_at"]
        return (
            f"SELECT {sql.k['id']}, {expires_at} FROM {sql.table} {self.dialect.by_expiry} WHERE {sql.expired} "
            f"AND {expires_at} >= COALESCE(%s, '1000-01-01') "
            f"ORDER BY {expires_at} LIMIT %s {self.dialect.skip_locked}"
        )

    # --- the claim

    def _insert_row(self, sql: str, params: list[Any]) -> int | None:
        """Insert the row. Its id, or None if the key is stored already. Raises `KeyLocked`."""
        try:
            with self._held_up(), self._cursor() as cursor:
                cursor.execute(sql, params)
                return int(cursor.lastrowid)
        except IntegrityError as error:
            if _code(error) not in SEEN:
                raise
            return None

    @contextmanager
    def _held_up(self) -> Iterator[None]:
        """A lock that was not free in time means that another transaction works on the key."""
        try:
            yield
        except OperationalError as error:
            if _code(error) not in self.gave_up or self._has_rolled_back_a_caller(error):
                raise
            raise KeyLocked from error

    def _has_rolled_back_a_caller(self, error: OperationalError) -> bool:
        """Whether the caller's writes before the claim are gone. A mere conflict would hide that."""
        if _code(error) != LOCK_WAIT_TIMEOUT or self.is_outermost(self.connection):
            return False
        return bool(self._fetch("SELECT @@innodb_rollback_on_timeout", [])[0])

    # --- cleanup

    def purge(self, batch_size: int, not_before: Any = None) -> tuple[int, Any]:
        sql = self._sql
        with self._cursor() as cursor:
            # Two statements: a DELETE takes no LIMIT in a subquery, and no SKIP LOCKED.
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


def _code(error: DatabaseError) -> int | None:
    """The server's number of an error."""
    return error.args[0] if error.args else None
