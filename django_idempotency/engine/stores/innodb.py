"""InnoDB is the engine of MariaDB and MySQL. This module knows InnoDB's errors, and takes locks without waiting."""

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
    """The claim is designed for READ COMMITTED, Django's default. Under this level, a plain read shows committed rows
    only.

    Under other isolation levels a claim is also correct, but requests conflict more often. See the system checks and
    `docs/databases.md`.
    """

    repeatable = rolled_back = ROLLED_BACK
    unmigrated = frozenset({1054, 1146})  # unknown column, no such table
    at_once: ClassVar[str] = ""
    """SQL in front of a statement. With it, the statement raises an error if a lock is not free, and does not wait."""
    guard: ClassVar[str]
    """The SQL that looks for the key inside the INSERT of that key."""
    share: ClassVar[str]
    """The SQL that reads a key. Under every isolation level, the read shows committed rows, and does not wait."""

    def code(self, error: DatabaseError) -> object:
        return error.args[0] if error.args else None

    def has_no_transaction(self, connection: BaseDatabaseWrapper) -> bool:
        # Django has switched the server's autocommit off. If the driver opens a new connection without Django's
        # knowledge, the new connection has autocommit on.
        raw: Any = connection.connection
        return raw is not None and not connection.closed_in_transaction and bool(raw.open and raw.get_autocommit())

    def check(self) -> Iterable[CheckMessage]:
        return [*super().check(), *check_engines(self.connection)]

    @property
    def _isolation(self) -> str:
        """Return the isolation level of the project's settings, in lower case, or "" for the server's default."""
        options = self.connection.settings_dict["OPTIONS"]
        return (options.get("isolation_level", "read committed") or "").lower()

    @property
    def reads_committed(self) -> bool:
        """Return whether transactions are READ COMMITTED. Under READ COMMITTED, reading a missing key locks nothing."""
        return self._isolation == "read committed"

    def look(self, wanted: ClaimRequest) -> Known:
        if self._isolation == "read uncommitted":
            return Conflicted()  # a plain read would show a result that is not committed yet
        return super().look(wanted)

    def _read(self, wanted: ClaimRequest) -> StoredKey | None:
        if self.reads_committed:
            return super()._read(wanted)
        with self._held_up():
            return self._stored(self.share.format(self._sql.look), wanted)

    def _insert(self, wanted: ClaimRequest) -> int | None:
        # If an INSERT finds a duplicate row, the INSERT locks the gap beside the row until the transaction ends, even
        # under READ COMMITTED. A view that runs under an expired key would then block other new keys. So the store
        # looks for the key before the INSERT. Under READ COMMITTED, the INSERT itself can look for the key. Under other
        # levels, a look inside the INSERT would lock the gap, and under SERIALIZABLE every look would lock the gap. The
        # statement is not INSERT … SELECT, because INSERT … SELECT can wait for the table's AUTO-INC lock, or keep that
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
        """Raise `KeyLocked` if a lock was not free in time, because then another transaction works on the key."""
        try:
            yield
        except OperationalError as error:
            if self.code(error) not in HELD_UP or self._has_rolled_back_a_caller(error):
                raise
            raise KeyLocked from error

    def _has_rolled_back_a_caller(self, error: OperationalError) -> bool:
        """Return whether the server has rolled back what the caller wrote before the claim.

        If the writes are lost, the error must propagate. With an answer "conflict", the caller would not learn of the
        loss.
        """
        connection = self.connection
        if self.code(error) != LOCK_WAIT_TIMEOUT or (connection.commit_on_exit and not connection.savepoint_ids):
            return False
        return bool(self._fetch("SELECT @@innodb_rollback_on_timeout")[0])


class MariaDBStore(InnoDBStore):
    """On MariaDB, a lock on the unique index shows which key is in flight. Duplicates do not wait for that lock.

    While a request is running, its row is not committed, and a duplicate request would wait for the lock of that row.
    With a timeout of 0, the duplicate gets error 1205 at once, and the server rolls back the duplicate's statement
    only. But a server with innodb_rollback_on_timeout rolls back the whole transaction after error 1205. The timeout
    is set for one statement, so the timeout of the session does not change.
    """

    at_once = AT_ONCE
    guard = "{}"
    share = AT_ONCE + "{} LOCK IN SHARE MODE"

    def look(self, wanted: ClaimRequest) -> Known:
        # Sometimes a Galera node ends our transaction before it shows the rows of the transaction that won. So this
        # query waits until the node shows the committed rows.
        if self._fetch("SHOW VARIABLES LIKE 'wsrep_on'") == ("wsrep_on", "ON"):
            self._fetch("SET STATEMENT wsrep_sync_wait = 1 FOR " + self._sql.seen, values_of(wanted))
        return super().look(wanted)


class MySQLStore(InnoDBStore):
    """On MySQL, a read with FOR UPDATE NOWAIT shows whether the key is in flight. The read never waits for a lock.

    The locking read is a part of the INSERT, so a first request needs no additional statement. The locking read locks
    the row only (FOR UPDATE). So if several requests come for one expired key, one request gets the row, and the other
    requests do not wait.

    The statement has two halves, the locking read and the INSERT, with some microseconds between them. If a duplicate
    request comes between the two halves, the duplicate waits until the first request ends. Under an isolation level
    other than READ COMMITTED, each duplicate of a running request waits: a locking read would lock the gap around the
    missing key, so the INSERT has no locking read there. `innodb_lock_wait_timeout` limits how long a duplicate waits.

    Suppose a client sends a key again after the key was deleted, but before InnoDB has purged the deleted row. In this
    case, the INSERT of the key locks the gap beside the deleted row. Other new keys with a hash in that gap wait until
    the request with the repeated key ends.
    """

    # The SELECT is a derived table, because MySQL refuses to read the table that a statement writes (error 1093). A
    # plain SELECT is not possible here, because inside an INSERT a plain SELECT becomes a locking read that waits. SKIP
    # LOCKED is not possible, because SKIP LOCKED returns no row for a key in flight.
    guard = "SELECT 1 FROM ({} FOR UPDATE NOWAIT) AS seen"
    share = "{} FOR SHARE NOWAIT"

    def _locked(self, wanted: ClaimRequest) -> ClaimOutcome:
        # A committed row can be read without a lock. Perhaps the other transaction has locked the row only to answer a
        # duplicate.
        with suppress(KeyLocked), self._held_up():
            if self.reads_committed:
                return self.look(wanted)
        return Conflicted()
