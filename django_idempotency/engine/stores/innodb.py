"""InnoDB, the engine of MariaDB and MySQL: its clock, its errors, and locks that are free at once or not at all."""

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
"""Errors of a statement that another transaction has held up. 3572 is MySQL's for NOWAIT."""
AT_ONCE = "SET STATEMENT innodb_lock_wait_timeout = 0 FOR "
"""For MariaDB. MySQL has no such limit of one statement."""
SEEN = frozenset({1048, 1062})
"""Errors meaning the key exists: 1048 (our subselect found it, so key_hash is NULL), or a duplicate entry."""
ROLLED_BACK = frozenset({1020, 1213})
"""The whole transaction is gone. 1020: another transaction has changed a row since our snapshot, under REPEATABLE READ
with innodb_snapshot_isolation, MariaDB's default since 11.6. 1213: a deadlock. Galera has that code also for a
transaction that another node was faster to commit."""


class InnoDBStore(Store):
    """READ COMMITTED, Django's default, is what the claim is made for: a plain read shows what is committed.

    Under other levels a claim is as right, and conflicts more often. See the checks, and `docs/databases.md`.
    """

    repeatable = rolled_back = ROLLED_BACK
    unmigrated = frozenset({1054, 1146})  # unknown column, no such table
    at_once: ClassVar[str] = ""
    """Before a statement: makes its locks free at once, or not at all."""
    guard: ClassVar[str]
    """The look at a key inside of its INSERT."""
    share: ClassVar[str]
    """The SELECT of an identity, so that it shows what is committed under any isolation level, and does not wait."""

    def code(self, error: DatabaseError) -> object:
        return error.args[0] if error.args else None

    def has_no_transaction(self, connection: BaseDatabaseWrapper) -> bool:
        # Django has switched the server's autocommit off. A connection that was made anew behind its back has it on.
        raw: Any = connection.connection
        return raw is not None and not connection.closed_in_transaction and bool(raw.open and raw.get_autocommit())

    def check(self) -> Iterable[CheckMessage]:
        return [*super().check(), *check_engines(self.connection)]

    @property
    def _isolation(self) -> str:
        """The isolation level of the project's settings, in lower case. Empty: the server's own."""
        options = self.connection.settings_dict["OPTIONS"]
        return (options.get("isolation_level", "read committed") or "").lower()

    @property
    def reads_committed(self) -> bool:
        """Whether transactions are READ COMMITTED. Then a read of a missing key locks nothing."""
        return self._isolation == "read committed"

    def look(self, wanted: ClaimRequest) -> Known:
        if self._isolation == "read uncommitted":
            return Conflicted()  # a plain read would show a result that may still be rolled back
        return super().look(wanted)

    def _read(self, wanted: ClaimRequest) -> StoredKey | None:
        if self.reads_committed:
            return super()._read(wanted)
        with self._held_up():
            return self._stored(self.share.format(self._sql.look), wanted)

    def _insert(self, wanted: ClaimRequest) -> int | None:
        # An INSERT that meets its duplicate locks the gap beside the row until the transaction ends, even under READ
        # COMMITTED. A view that runs under an expired key would then block other new keys. So look first. Under READ
        # COMMITTED, the INSERT itself can look. Elsewhere that look would lock the gap, and so would any look under
        # SERIALIZABLE. Not INSERT ... SELECT: that statement may wait for the table's AUTO-INC lock, or hold it.
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
        """A lock that was not free in time means that another transaction works on the key."""
        try:
            yield
        except OperationalError as error:
            if self.code(error) not in HELD_UP or self._has_rolled_back_a_caller(error):
                raise
            raise KeyLocked from error

    def _has_rolled_back_a_caller(self, error: OperationalError) -> bool:
        """Whether the caller's writes before the claim are gone. A mere conflict would hide that."""
        connection = self.connection
        if self.code(error) != LOCK_WAIT_TIMEOUT or (connection.commit_on_exit and not connection.savepoint_ids):
            return False
        return bool(self._fetch("SELECT @@innodb_rollback_on_timeout")[0])


class MariaDBStore(InnoDBStore):
    """MariaDB: a lock wait on the unique index tells which key is in flight. A timeout of 0 cuts the wait short.

    A duplicate of a running request would wait on the index record of the uncommitted row. With that timeout, the
    duplicate gets error 1205 at once, which rolls back the one statement. The exception is a server with
    innodb_rollback_on_timeout, where 1205 rolls back the transaction. The timeout is that of the statement: the
    session keeps its own.
    """

    at_once = AT_ONCE
    guard = "{}"
    share = AT_ONCE + "{} LOCK IN SHARE MODE"

    def look(self, wanted: ClaimRequest) -> Known:
        # A Galera node ends a transaction before the node shows what the winner has committed. So wait for that.
        if self._fetch("SHOW VARIABLES LIKE 'wsrep_on'") == ("wsrep_on", "ON"):
            self._fetch("SET STATEMENT wsrep_sync_wait = 1 FOR " + self._sql.seen, values_of(wanted))
        return super().look(wanted)


class MySQLStore(InnoDBStore):
    """MySQL: a locking read that does not wait tells which key is in flight.

    The locking read stands in the INSERT itself, so that a first request costs no statement more than elsewhere. It
    locks the row alone (FOR UPDATE). So of several requests for one expired key, one gets the row, and none waits
    for another.

    A duplicate that comes between the two halves of that statement, within some microseconds, waits for the first
    request to end. So does each duplicate of a running request under another isolation level than READ COMMITTED:
    there, the locking read would lock the gap in which the key is not. `innodb_lock_wait_timeout` limits both.

    A key may come again after it was deleted, and before InnoDB has purged the deleted row. Its INSERT then locks
    the gap beside that row, and other new keys with a hash in that gap wait for its request to end.
    """

    # A derived table, because MySQL refuses to read the table that a statement writes (1093). A plain read would not
    # do: inside of an INSERT it is a locking read that waits. SKIP LOCKED would not do: it returns no row for a key in
    # flight.
    guard = "SELECT 1 FROM ({} FOR UPDATE NOWAIT) AS seen"
    share = "{} FOR SHARE NOWAIT"

    def _locked(self, wanted: ClaimRequest) -> ClaimOutcome:
        # What is committed can be read without a lock. Another transaction may hold the row only to answer a duplicate.
        with suppress(KeyLocked), self._held_up():
            if self.reads_committed:
                return self.look(wanted)
        return Conflicted()
