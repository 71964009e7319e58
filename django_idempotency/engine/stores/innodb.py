"""InnoDB, the engine of MariaDB and MySQL: its clock, its errors, a fence, and a cleanup that passes over locks."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

from django.db import DatabaseError, IntegrityError, OperationalError, transaction

from ...exceptions import IdempotencyConfigurationError
from ..protocol.claims import ClaimRequest
from ..protocol.outcomes import Claimed, Completed, Conflicted, InDoubt, Mismatched
from .dialect import Dialect
from .innodb_checks import check_engines
from .lease_queries import LeaseQueries
from .leases import lease_lost
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
NO_SUCH_LETTER = 1366
"""A text has a letter that the character set of its column lacks, such as latin1, or utf8mb3 where it is an emoji."""
CLOCK = "UTC_TIMESTAMP(6)"
LATER = "DATE_ADD(UTC_TIMESTAMP(6), INTERVAL %s SECOND)"
SECONDS_UNTIL = f"TIMESTAMPDIFF(MICROSECOND, {CLOCK}, {{}}) / 1000000"


class InnoDBLeaseQueries(LeaseQueries):
    """Each UPDATE that is counted changes its row: only FOUND_ROWS would count a row that stays the same.

    Django sets FOUND_ROWS, but a `client_flag` in the project's OPTIONS takes its place.
    """

    def __init__(self, dialect: Dialect, quote: Callable[[str], str]) -> None:
        super().__init__(dialect, quote)
        self._joined = LeaseQueries(dialect, quote)
        self._joined.k = {name: f"{self.table}.{column}" for name, column in self.k.items()}

    @cached_property
    def restart_step(self) -> str:
        return self._with_own_step(f"{self.steps}.{self.s['attempt']} = %s")

    @cached_property
    def finish_call(self) -> str:
        return self._with_own_step(self.finished)

    def _with_own_step(self, changes: str) -> str:
        """Change the claimed row as `touch` does, and its step, by one UPDATE. The row is read and locked first."""
        k = self._joined.k
        return (
            f"UPDATE {self.table} STRAIGHT_JOIN {self.steps} ON {self.s['key']} = {k['id']} "
            f"SET {changes}, {self._touched} WHERE {self._joined.fence} AND {self.unfinished_step}"
        )

    @cached_property
    def refer(self) -> str:
        # An attempt may refer to what it, or an earlier one, has referred to.
        return f"UPDATE {self.table} SET {self.set_resource}, {self._touched} WHERE {self.fence}"

    @cached_property
    def touch(self) -> str:
        """Change the claimed row in a way that means nothing. Parameters: the fence's."""
        return f"UPDATE {self.table} SET {self._touched} WHERE {self.fence}"

    @cached_property
    def _touched(self) -> str:
        until = self.k["locked_until"]
        return f"{until} = {until} + INTERVAL 1 MICROSECOND"


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

    def fence(self, claimed: Claimed) -> None:
        # Not a locking SELECT: a Galera node compares with the other nodes what a transaction has changed, and never
        # what the transaction has locked.
        self._execute_or(lease_lost, self._lease_sql.touch, claimed.fence)

    def fail(self, claimed: Claimed, wanted: ClaimRequest, error: str) -> None:
        try:
            super().fail(claimed, wanted, error)
        except (DatabaseError, UnicodeEncodeError) as refused:
            if isinstance(refused, DatabaseError) and _code(refused) != NO_SUCH_LETTER:
                raise
            # The key must not wait for its lease because of a text.
            super().fail(claimed, wanted, error.encode("ascii", "backslashreplace").decode())

    def start_call(self, claimed: Claimed, name: str, *, again: bool) -> None:
        if again:
            with transaction.atomic(using=self.alias):  # its COMMIT ends a raw BEGIN, which no driver tells of
                # One row or two: if `reconcile` has made the call in vain, in this attempt, the step stays the same.
                if not self._execute(self._lease_sql.restart_step, [claimed.attempt, *claimed.fence, name]):
                    raise lease_lost()
            return
        with self._name_of_its_own(name), transaction.atomic(using=self.alias):
            self.fence(claimed)
            super().start_call(claimed, name, again=False)

    def keep_fetched(self, claimed: Claimed, name: str, result: str) -> None:
        with self._name_of_its_own(name):
            super().keep_fetched(claimed, name, result)

    def start_write(self, claimed: Claimed, name: str) -> None:
        self.fence(claimed)
        with self._name_of_its_own(name):
            super().start_write(claimed, name)

    @contextmanager
    def _name_of_its_own(self, name: str) -> Iterator[None]:
        """Explain why a new step is refused, although the work has used its name nowhere else.

        Only the server knows what the column's collation ignores. So no name is compared here.
        """
        try:
            yield
        except IntegrityError as error:
            if _code(error) != DUPLICATE:
                raise
            raise IdempotencyConfigurationError(
                f"database {self.alias!r} cannot tell step {name!r} from another step of this key: the collation of "
                f"the column 'name' of table {self._lease_sql.steps} ignores capitals or accents, or spaces at the "
                "end. Give this step another name. If a release has renamed the step, give it its earlier name."
            ) from error

    # --- the pieces of SQL

    @cached_property
    def _lease_sql(self) -> LeaseQueries:
        return InnoDBLeaseQueries(self.dialect, self._quote)

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
