"""This module has the stores for MariaDB and MySQL. The key table must use the storage engine InnoDB.

Most statements of these stores do not wait for a lock. If a lock is not free, InnoDB returns an error code.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

from django.db import Error, IntegrityError, OperationalError

from ..protocol.outcomes import ClaimOutcome, ClaimRequest, Conflicted, Known
from ..protocol.stored_key import StoredKey
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
DOWN = frozenset({0, 1040, 1047, 1053, 1203, 1927, 2002, 2003, 2006, 2013, 4031, 1290, 1792, 1836})
"""The driver's own code of a connection that has ended before, and error codes of a server that has no connection left,
is not a part of its Galera cluster, stops, cannot be reached, has ended the connection, or is read-only (the last
three)."""


class InnoDBStore(Store):
    """The claim works best under the isolation level READ COMMITTED, which is Django's default.

    Under READ COMMITTED, a SELECT without a lock returns committed rows only.

    Under other isolation levels, a claim is also correct, but conflicts between requests happen more often. See
    `docs/databases.md`.
    """

    repeatable = rolled_back = ROLLED_BACK
    down = DOWN
    unmigrated = frozenset({1054, 1146})  # error 1054 means an unknown column, and error 1146 means a missing table
    at_once: ClassVar[str] = ""
    """SQL in front of a statement. With it, the statement raises an error if a lock is not free, and does not wait."""
    guard: ClassVar[str]
    """The SQL that looks for the key inside the INSERT of that key."""
    share: ClassVar[str]
    """The SQL that reads a key. Under every isolation level, the read shows committed rows, and does not wait."""

    def code(self, error: Error) -> object:
        return error.args[0] if error.args else None

    def has_no_transaction(self, connection: BaseDatabaseWrapper) -> bool:
        # During a transaction, autocommit is off on Django's connection. Sometimes the driver opens a new connection,
        # and Django does not notice the new connection. On the new connection, autocommit is on.
        raw: Any = connection.connection
        return raw is not None and not connection.closed_in_transaction and bool(raw.open and raw.get_autocommit())

    def check(self) -> Iterable[CheckMessage]:
        return [*super().check(), *check_engines(self.connection)]

    @property
    def _isolation(self) -> str:
        """Return the isolation level from Django's settings, in lower case.

        If Django uses the server's default level, return an empty text.
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
        # COMMITTED. The gap lock lasts until the transaction of the INSERT ends. If the key has expired, the view runs
        # in this transaction. So the gap lock would block the INSERT of other new keys until the view ends. To avoid
        # the gap lock, the store searches for the key before the INSERT.
        #
        # Under READ COMMITTED, a subquery of the INSERT searches for the key. Under other isolation levels, this
        # subquery would lock the gap. So a separate SELECT searches for the key. Under SERIALIZABLE, every SELECT would
        # lock the gap. So under SERIALIZABLE, the store does not search before the INSERT. The store does not use
        # INSERT … SELECT, because this statement can need the table's AUTO-INC lock.
        sql, values, insert = self._sql, values_of(wanted), self._plain_insert
        if self.reads_committed:
            insert = self._guarded_insert
        elif self._isolation != "serializable" and self._fetch(sql.seen, values) is not None:
            return None
        try:
            with self._held_up(), self.connection.cursor() as cursor:
                cursor.execute(insert, values)
                return int(cursor.lastrowid)
        except IntegrityError as error:
            if self.code(error) not in SEEN:
                raise
            return None

    @cached_property
    def _plain_insert(self) -> str:
        return self.at_once + self._sql.insert()

    @cached_property
    def _guarded_insert(self) -> str:
        key_hash = f"(SELECT %(key_hash)s FROM DUAL WHERE NOT EXISTS ({self.guard.format(self._sql.seen)}))"
        return self.at_once + self._sql.insert(key_hash=key_hash)

    @contextmanager
    def _held_up(self) -> Iterator[None]:
        """Raise `KeyLocked` if a statement does not get a lock in time. In this case, another transaction is working on
        the key.
        """
        try:
            yield
        except OperationalError as error:
            if self.code(error) not in HELD_UP or self._has_rolled_back_a_caller(error):
                raise
            raise KeyLocked from error

    def _has_rolled_back_a_caller(self, error: OperationalError) -> bool:
        """Return whether the server has rolled back the writes that the caller made before the claim.

        If the caller's writes are lost, the caller must get the database error. With the outcome `Conflicted`, the
        caller would not notice that its writes are lost.
        """
        connection = self.connection
        if self.code(error) != LOCK_WAIT_TIMEOUT or (connection.commit_on_exit and not connection.savepoint_ids):
            return False
        return bool(self._fetch("SELECT @@innodb_rollback_on_timeout")[0])


class MariaDBStore(InnoDBStore):
    """On MariaDB, a locked entry of the unique index shows that another request with the same key is running. A
    duplicate does not wait for this lock.

    A running request has inserted its row, but has not committed the row. With the usual lock timeout, a duplicate
    would wait for the lock of this row. With a lock timeout of 0, the INSERT of the duplicate fails immediately with
    error 1205. After error 1205, the server rolls back only the failed statement. But with the server option
    `innodb_rollback_on_timeout`, the server rolls back the whole transaction. The lock timeout of 0 is set for one
    statement only, and not for the whole session.
    """

    at_once = AT_ONCE
    guard = "{}"
    share = AT_ONCE + "{} LOCK IN SHARE MODE"

    def look(self, wanted: ClaimRequest) -> Known:
        # In a Galera cluster, a transaction on another node can change the same rows and commit first. Then our node
        # rolls back our transaction. For a short time, perhaps a SELECT on our node does not find the rows of the other
        # transaction. With `wsrep_sync_wait`, the next statement waits until this node has received all rows that the
        # other nodes have committed.
        if self._fetch("SHOW VARIABLES LIKE 'wsrep_on'") == ("wsrep_on", "ON"):
            self._fetch("SET STATEMENT wsrep_sync_wait = 1 FOR " + self._sql.seen, values_of(wanted))
        return super().look(wanted)


class MySQLStore(InnoDBStore):
    """On MySQL, a SELECT with FOR UPDATE NOWAIT searches for the key. If another request has locked the row of the key,
    this SELECT fails immediately.

    The SELECT is a subquery of the INSERT, so the claim of a new key needs only one statement. FOR UPDATE locks only
    the row of the key. If several requests send the same expired key at the same time, only one request gets the lock.
    The other requests do not wait.

    MySQL runs the subquery first, and inserts the row some microseconds later. If a duplicate comes in these
    microseconds, the duplicate waits until the first request ends. In isolation levels other than READ COMMITTED, the
    subquery locks the index gap around a new key. So under these levels, the INSERT has no subquery, and each duplicate
    waits until the running request ends. The server option `innodb_lock_wait_timeout` limits how long a duplicate
    waits.

    InnoDB keeps a deleted row in the index for some time. During this time, a client can send the key of the deleted
    row again. Then the INSERT of this key locks the index gap next to the deleted row. If a second request inserts a
    new key in the same gap, this INSERT waits until the gap lock is released.
    """

    # If a subquery reads the table into which the statement inserts a row, MySQL raises error 1093. A derived table (a
    # SELECT inside FROM) avoids this error. A plain SELECT inside an INSERT would wait for locks, so FOR UPDATE NOWAIT
    # is necessary. With SKIP LOCKED, the SELECT would not find a locked row, and the key would look like a new key.
    guard = "SELECT 1 FROM ({} FOR UPDATE NOWAIT) AS seen"
    share = "{} FOR SHARE NOWAIT"

    def _locked(self, wanted: ClaimRequest) -> ClaimOutcome:
        # Perhaps another duplicate has locked the row, but has not changed the row. The method `look` reads the
        # committed row without a lock.
        with suppress(KeyLocked), self._held_up():
            if self.reads_committed:
                return self.look(wanted)
        return Conflicted()
