"""This module has the stores for MariaDB and MySQL, which keep their tables in the storage engine InnoDB.

The stores interpret the error codes of InnoDB, and take locks without waiting for them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, ClassVar

from django.db import DatabaseError, IntegrityError, OperationalError

from ..protocol.decision import StoredKey
from ..protocol.outcomes import ClaimOutcome, ClaimRequest, Conflicted, Known
from .queries import values_of
from .server_checks import check_engines
from .store import KeyLocked, Store

if TYPE_CHECKING:
    from django.core.checks import CheckMessage
    from django.db.backends.base.base import BaseDatabaseWrapper

LOCK_WAIT_TIMEOUT = 1205
HELD_UP = frozenset({LOCK_WAIT_TIMEOUT, 3572})
"""The error codes of a statement that could not get a lock of another transaction. MySQL raises 3572 for NOWAIT."""
AT_ONCE = "SET STATEMENT innodb_lock_wait_timeout = 0 FOR "
"""A prefix that only MariaDB understands: MySQL cannot limit the lock wait of one statement."""
SEEN = frozenset({1048, 1062})
"""Error codes which mean that the key exists already. In 1048, our subselect found the key, so key_hash is NULL. In
1062, the INSERT met a duplicate entry."""
ROLLED_BACK = frozenset({1020, 1213})
"""Error codes which mean that the server has rolled back the whole transaction.

1020 means that another transaction has changed a row since our snapshot. The server raises it under REPEATABLE READ
with innodb_snapshot_isolation, which is MariaDB's default since 11.6.
1213 means a deadlock. Galera also raises this error if another node was faster to commit.
"""


class InnoDBStore(Store):
    """The claim is designed for the isolation level READ COMMITTED, which is Django's default.

    Under READ COMMITTED, a SELECT without a lock returns committed rows only.

    Under other isolation levels, a claim is also correct, but conflicts between requests are more frequent. The system
    checks and `docs/databases.md` say more.
    """

    repeatable = rolled_back = ROLLED_BACK
    unmigrated = frozenset({1054, 1146})  # error 1054 means an unknown column, and error 1146 means a missing table
    at_once: ClassVar[str] = ""
    """SQL in front of a statement. With it, the statement raises an error if a lock is not free, and does not wait."""
    guard: ClassVar[str]
    """The SQL that looks for the key inside the INSERT of that key."""
    share: ClassVar[str]
    """The SQL that reads a key. Under every isolation level, the read shows committed rows, and does not wait."""

    def code(self, error: DatabaseError) -> object:
        return error.args[0] if error.args else None

    def has_no_transaction(self, connection: BaseDatabaseWrapper) -> bool:
        # While Django has a transaction open, autocommit is off on Django's connection. Sometimes the driver opens a
        # new connection, and Django does not notice this. On the new connection, autocommit is on.
        raw: Any = connection.connection
        return raw is not None and not connection.closed_in_transaction and bool(raw.open and raw.get_autocommit())

    def check(self) -> Iterable[CheckMessage]:
        return [*super().check(), *check_engines(self.connection)]

    @property
    def _isolation(self) -> str:
        """Return the isolation level from Django's settings, in lower case.

        An empty text means that the default of the server applies.
        """
        options = self.connection.settings_dict["OPTIONS"]
        return (options.get("isolation_level", "read committed") or "").lower()

    @property
    def reads_committed(self) -> bool:
        """Return whether transactions run under READ COMMITTED.

        Under READ COMMITTED, a SELECT for a missing key locks nothing.
        """
        return self._isolation == "read committed"

    def look(self, wanted: ClaimRequest) -> Known:
        if self._isolation == "read uncommitted":
            return Conflicted()  # under READ UNCOMMITTED, a SELECT could return a result that is not committed
        return super().look(wanted)

    def _read(self, wanted: ClaimRequest) -> StoredKey | None:
        if self.reads_committed:
            return super()._read(wanted)
        with self._held_up():
            return self._stored(self.share.format(self._sql.look), wanted)

    def _insert(self, wanted: ClaimRequest) -> int | None:
        # If an INSERT finds a duplicate row, the INSERT locks the index gap next to this row, even under READ
        # COMMITTED. The gap lock lasts until the transaction ends. So while a view runs for a request with an expired
        # key, the gap lock would block the INSERT of other new keys. To avoid the gap lock, the store searches for the
        # key before the INSERT. Under READ COMMITTED, a subquery of the INSERT searches for the key. Under other
        # isolation levels, such a subquery would lock the gap, so a separate SELECT searches for the key. Under
        # SERIALIZABLE, every SELECT would lock the gap, so the store does not search before the INSERT. The statement
        # is not INSERT … SELECT, because such a statement can wait for the table's AUTO-INC lock, or can keep this
        # lock.
        sql, values, key_hash = self._sql, values_of(wanted), "%(key_hash)s"
        if self.reads_committed:
            key_hash = f"(SELECT {key_hash} FROM DUAL WHERE NOT EXISTS ({self.guard.format(sql.seen)}))"
        elif self._isolation != "serializable" and self._fetch(sql.seen, values) is not None:
            return None
        try:
            with self._held_up(), self.connection.cursor() as cursor:
                cursor.execute(self.at_once + sql.insert(key_hash=key_hash), values)
                return int(cursor.lastrowid)
        except IntegrityError as error:
            if self.code(error) not in SEEN:
                raise
            return None

    @contextmanager
    def _held_up(self) -> Iterator[None]:
        """Raise `KeyLocked` if a lock was not free in time, because another transaction is working on the key."""
        try:
            yield
        except OperationalError as error:
            if self.code(error) not in HELD_UP or self._has_rolled_back_a_caller(error):
                raise
            raise KeyLocked from error

    def _has_rolled_back_a_caller(self, error: OperationalError) -> bool:
        """Return whether the server has rolled back the writes that the caller made before the claim.

        If the caller's writes are lost, the database error must propagate. With the answer "conflict", the caller would
        not notice that its writes are lost.
        """
        connection = self.connection
        if self.code(error) != LOCK_WAIT_TIMEOUT or (connection.commit_on_exit and not connection.savepoint_ids):
            return False
        return bool(self._fetch("SELECT @@innodb_rollback_on_timeout")[0])


class MariaDBStore(InnoDBStore):
    """On MariaDB, a lock on the unique index shows that a key is in flight. A duplicate does not wait for the lock.

    A running request has inserted its row, but has not committed the row. With a normal lock timeout, a duplicate
    request waits for the lock of this row. With a lock timeout of 0, the statement of the duplicate gets error 1205 at
    once. After error 1205, the server rolls back only the failed statement. But with the server option
    `innodb_rollback_on_timeout`, the server rolls back the whole transaction. The lock timeout is set for one
    statement, so the lock timeout of the session does not change.
    """

    at_once = AT_ONCE
    guard = "{}"
    share = AT_ONCE + "{} LOCK IN SHARE MODE"

    def look(self, wanted: ClaimRequest) -> Known:
        # Sometimes a Galera node rolls back our transaction, because another transaction was faster to commit. For a
        # moment, a SELECT on this node can miss the rows of the other transaction. With `wsrep_sync_wait`, the next
        # statement waits until this node has the committed rows.
        if self._fetch("SHOW VARIABLES LIKE 'wsrep_on'") == ("wsrep_on", "ON"):
            self._fetch("SET STATEMENT wsrep_sync_wait = 1 FOR " + self._sql.seen, values_of(wanted))
        return super().look(wanted)


class MySQLStore(InnoDBStore):
    """On MySQL, a SELECT … FOR UPDATE NOWAIT shows whether a key is in flight, and never waits for a lock.

    The SELECT … FOR UPDATE NOWAIT is a subquery of the INSERT, so the first request with a key needs no additional
    statement. FOR UPDATE locks only the row of the key. Several requests can come at the same time with the same
    expired key. Then one request gets the row, and the other requests do not wait.

    MySQL runs the subquery of an INSERT some microseconds before MySQL inserts the row. If a duplicate request comes in
    these microseconds, the duplicate waits until the first request ends. Under other isolation levels than READ
    COMMITTED, the subquery would lock the gap around a missing key. So under these levels, the INSERT has no subquery,
    and each duplicate of a running request waits. The server option `innodb_lock_wait_timeout` limits the time for
    which a duplicate waits.

    InnoDB keeps a deleted row in the index until InnoDB purges the row. Before the purge, a client can send the key of
    the deleted row again. Then the INSERT of this key locks the gap next to the deleted row. If the hash of another new
    key belongs in this gap, the INSERT of the other key waits until the transaction with the lock ends.
    """

    # If a subquery reads the table that the statement changes, MySQL raises error 1093. A derived table (a SELECT
    # inside FROM) avoids this error. FOR UPDATE NOWAIT is necessary, because a plain SELECT inside an INSERT would wait
    # for locks. SKIP LOCKED is not possible, because SKIP LOCKED returns no row for a key in flight.
    guard = "SELECT 1 FROM ({} FOR UPDATE NOWAIT) AS seen"
    share = "{} FOR SHARE NOWAIT"

    def _locked(self, wanted: ClaimRequest) -> ClaimOutcome:
        # Perhaps the lock belongs to another duplicate request, and this request does not change the committed row.
        # `look` can read a committed row without a lock.
        with suppress(KeyLocked), self._held_up():
            if self.reads_committed:
                return self.look(wanted)
        return Conflicted()
