"""The stores for MariaDB and MySQL, whose key table must use InnoDB.

Most statements fail with an error code instead of waiting for a lock.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar

from django.db import Error, IntegrityError, OperationalError

from ..protocol.outcomes import ClaimOutcome, ClaimRequest, Conflicted, Known
from ..protocol.stored_key import StoredKey
from .queries import values_of
from .server_checks import check_engines
from .store import KeyLocked, Store, T

if TYPE_CHECKING:
    from django.core.checks import CheckMessage

LOCK_WAIT_TIMEOUT = 1205
HELD_UP = frozenset({LOCK_WAIT_TIMEOUT, 3572})
"""The errors raised when a statement could not get a lock. 3572 is MySQL's error for NOWAIT."""
AT_ONCE = "SET STATEMENT innodb_lock_wait_timeout = 0 FOR "
"""A prefix that only MariaDB understands. MySQL can't limit the lock wait for a single statement."""
SEEN = frozenset({1048, 1062})
"""The errors raised if the key exists: the subselect found it, so key_hash is NULL (1048), or the INSERT ran into a
duplicate (1062)."""
ROLLED_BACK = frozenset({1020, 1213})
"""The errors after which the whole transaction is rolled back.

1020: another transaction has changed a row since our snapshot. This is raised under REPEATABLE READ with
innodb_snapshot_isolation, which is MariaDB's default since 11.6.
1213: a deadlock or, in Galera, another node that committed first."""
DOWN = frozenset({0, 1040, 1047, 1053, 1203, 1927, 2002, 2003, 2006, 2013, 4031, 1290, 1792, 1836})
"""The errors that show that the database is down. 0 is the driver's own code for a connection that has already ended.
The others mean that the server has no connections left, isn't part of its Galera cluster, is shutting down, can't be
reached, has ended the connection, or is read-only (the last three codes)."""


class InnoDBStore(Store):
    """The base class of the stores for MariaDB and MySQL. Claims work best under READ COMMITTED, Django's default.

    At this level, a SELECT without a lock returns only committed rows. Claims are also correct under other isolation
    levels, but conflict more often: see `docs/databases.md`.
    """

    repeatable = rolled_back = ROLLED_BACK
    down = DOWN
    unmigrated = frozenset({1054, 1146})  # an unknown column, a missing table
    at_once: ClassVar[str] = ""
    """A prefix that makes a statement fail instead of waiting for a lock."""
    statement_limit: ClassVar[tuple[str, Callable[[float], float]]]
    """The variable that limits how long a SELECT takes, and a function that converts seconds to its value."""
    guard: ClassVar[str]
    """The subquery with which an INSERT looks for its key."""
    share: ClassVar[str]
    """The query that reads a key. Under every isolation level, it reads only committed rows and doesn't wait."""

    def code(self, error: Error) -> object:
        return error.args[0] if error.args else None

    def check(self) -> Iterable[CheckMessage]:
        return [*super().check(), *check_engines(self.connection)]

    @property
    def _isolation(self) -> str:
        """The isolation level from Django's settings, lowercased, or an empty string for the server's own default."""
        options = self.connection.settings_dict["OPTIONS"]
        return (options.get("isolation_level", "read committed") or "").lower()

    @property
    def reads_committed(self) -> bool:
        """Whether transactions run under READ COMMITTED, where a SELECT for a missing key locks nothing."""
        return self._isolation == "read committed"

    def read(self, seconds: float, work: Callable[[], T]) -> T:
        # The second variable limits the wait for a table that DDL or LOCK TABLES holds.
        name, value = self.statement_limit
        limits = {name: value(seconds), "lock_wait_timeout": math.ceil(seconds)}
        before = self._fetch(f"SELECT {', '.join(f'@@SESSION.{name}' for name in limits)}")
        change = f"SET {', '.join(f'SESSION {name} = %({name})s' for name in limits)}"
        try:
            try:
                self._execute(change, limits)
                return work()
            finally:
                with suppress(Error):  # a connection that has ended took its variables with it
                    self._execute(change, dict(zip(limits, before, strict=True)))
        except BaseException as error:
            if not isinstance(error, Error) and not self.connection.in_atomic_block:
                self.connection.close()  # the exception may have struck before the variables were restored
            raise

    def look(self, request: ClaimRequest) -> Known:
        if self._isolation == "read uncommitted":
            return Conflicted()  # `look` might find an uncommitted result
        return super().look(request)

    def _read(self, request: ClaimRequest) -> StoredKey | None:
        if self.reads_committed:
            return super()._read(request)
        with self._held_up():
            return self._stored(self.share.format(self._sql.look), request)

    def _insert(self, request: ClaimRequest) -> int | None:
        # An INSERT that runs into a duplicate locks the index gap beside the duplicate until the transaction ends, even
        # under READ COMMITTED. If the key has expired, the view runs in that transaction, and other new keys have to
        # wait for it. The key is therefore looked up before the INSERT.
        #
        # Under READ COMMITTED, a subquery of the INSERT looks it up. At other levels, a subquery would lock the gap, so
        # a separate SELECT looks up the key. Under SERIALIZABLE, even that SELECT would lock the gap, so the key is not
        # looked up at all. INSERT … SELECT is not an option, because it may need the table's AUTO-INC lock.
        sql, values, insert = self._sql, values_of(request), self._plain_insert
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
        """Raise `KeyLocked` if a statement can't get a lock because another transaction for the key holds it."""
        try:
            yield
        except OperationalError as error:
            if self.code(error) not in HELD_UP or self._has_rolled_back_a_caller(error):
                raise
            raise KeyLocked from error

    def _has_rolled_back_a_caller(self, error: OperationalError) -> bool:
        """Whether the server has rolled back what the caller wrote before the claim.

        The caller must then get the error, because `Conflicted` would hide the fact that the caller's writes are lost.
        """
        connection = self.connection
        if self.code(error) != LOCK_WAIT_TIMEOUT or (connection.commit_on_exit and not connection.savepoint_ids):
            return False
        return bool(self._fetch("SELECT @@innodb_rollback_on_timeout")[0])


class MariaDBStore(InnoDBStore):
    """On MariaDB, a locked entry in the unique index shows that a request with the same key is running.

    The running request has inserted its row without committing it. A duplicate's INSERT would wait for that row's lock.
    With a lock timeout of 0, which is set for this statement rather than the session, the INSERT fails immediately with
    error 1205. The error normally rolls back only the failed statement. If `innodb_rollback_on_timeout` is set on the
    server, it rolls back the whole transaction.
    """

    at_once = AT_ONCE
    statement_limit = "max_statement_time", float
    guard = "{}"
    share = AT_ONCE + "{} LOCK IN SHARE MODE"

    def look(self, request: ClaimRequest) -> Known:
        # If a transaction on another Galera node commits first, this node may roll ours back before a SELECT can find
        # the other transaction's rows. After `wsrep_sync_wait`, this node has applied all earlier commits from the
        # other nodes.
        if self._fetch("SHOW VARIABLES LIKE 'wsrep_on'") == ("wsrep_on", "ON"):
            self._fetch("SET STATEMENT wsrep_sync_wait = 1 FOR " + self._sql.seen, values_of(request))
        return super().look(request)


class MySQLStore(InnoDBStore):
    """On MySQL, a SELECT … FOR UPDATE NOWAIT looks for the key, and fails immediately if its row is locked.

    The SELECT is a subquery of the INSERT, so a new key is claimed in one statement. It locks only the key's row. If
    several requests send the same expired key, one of them gets the lock, and the others don't wait.

    In two cases, a duplicate still waits until the running request ends, for at most `innodb_lock_wait_timeout`:

    * if it arrives in the microseconds between the first request's subquery and the insertion of its row;
    * under isolation levels other than READ COMMITTED, where the subquery is left out because it would lock the gap
      around a new key.

    InnoDB also keeps deleted rows in the index for a while. If a deleted key is sent again, its claim locks the gap
    beside it, and the INSERT of another new key in that gap waits for the lock.
    """

    # Reading the table that the INSERT writes to raises error 1093, except in a derived table (a SELECT inside FROM). A
    # plain SELECT would wait for locks, and SKIP LOCKED would mistake a locked row for a new key.
    statement_limit = "max_execution_time", lambda seconds: math.ceil(seconds * 1000)  # MySQL refuses fractions
    guard = "SELECT 1 FROM ({} FOR UPDATE NOWAIT) AS seen"
    share = "{} FOR SHARE NOWAIT"

    def _locked(self, request: ClaimRequest) -> ClaimOutcome:
        # The lock may belong to another duplicate, and the row may be unchanged. `look` reads only committed
        # rows, and does not lock them.
        with suppress(KeyLocked), self._held_up():
            if self.reads_committed:
                return self.look(request)
        return Conflicted()
