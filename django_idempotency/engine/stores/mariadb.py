"""MariaDB: a lock wait on the unique index tells which key is in flight. A timeout cuts the wait short.

A duplicate of a running request would wait on the index record of the uncommitted row. Without `wait`, the lock wait
timeout is 0, and the duplicate gets error 1205. With `wait`, the time of the statement is limited, and the duplicate
gets error 1969: a lock wait timeout has whole seconds only. Both errors roll back the one statement. The exception is a
server with innodb_rollback_on_timeout, where 1205 rolls back the transaction.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from math import ceil
from typing import TYPE_CHECKING, Any

from ..protocol.claims import ClaimRequest
from ..protocol.decision import StoredKey
from ..protocol.outcomes import Claimed, Conflicted, InDoubt, Row
from .dialect import Dialect
from .innodb import CLOCK, LATER, LOCK_WAIT_TIMEOUT, SECONDS_UNTIL, InnoDBStore
from .innodb_checks import check_isolation
from .queries import as_new_row

if TYPE_CHECKING:
    from django.core.checks import CheckMessage

STATEMENT_TIMEOUT = 1969
"""The statement took too long: by our limit, or by the project's."""
TAKE_OVER_WAIT = 5
"""Seconds. Rivals for an expired row all hold a share lock on it, and each wants to lock it alone. InnoDB's deadlock
detection then picks a winner at once, but only among transactions that wait. So this is beside the caller's `wait`."""
SHORTEST, LONGEST = 0.001, 365 * 86400.0
"""Seconds. A statement time of 0 would be no limit, and the server takes no longer one than a year."""


class MariaDBStore(InnoDBStore):
    gave_up = frozenset({LOCK_WAIT_TIMEOUT, STATEMENT_TIMEOUT})
    dialect = Dialect(
        clock=CLOCK,
        clock_once=CLOCK,
        later=LATER,
        seconds_until=SECONDS_UNTIL,
        skip_locked="FOR UPDATE SKIP LOCKED",
        lock="FOR UPDATE",
        # Not SKIP LOCKED: each rival holds the share lock of its reading, so all of them would skip the row.
        lock_or_skip=f"FOR UPDATE WAIT {TAKE_OVER_WAIT}",
        share="LOCK IN SHARE MODE",
        # In a small table the optimizer may choose the index on expires_at, and lock all of its range.
        by_id="FORCE INDEX (PRIMARY)",
    )

    def check(self) -> Iterable[CheckMessage]:
        return [*super().check(), *check_isolation(self.connection)]

    def _look_sql(self) -> str:
        # A Galera node ends a transaction before the node shows what the winner has committed. So wait for that.
        on_galera = self._fetch("SHOW VARIABLES LIKE 'wsrep_on'", []) == ("wsrep_on", "ON")
        return f"SET STATEMENT wsrep_sync_wait = 1 FOR {self._sql.look}" if on_galera else self._sql.look

    @cached_property
    def _read_sql(self) -> str:
        """Read the row as committed now. A plain read would show the past under REPEATABLE READ."""
        sql = self._sql
        return f"SELECT {sql.stored_key} FROM {sql.table} WHERE {sql.same_hashes} LOCK IN SHARE MODE"

    def _insert(self, wanted: ClaimRequest) -> int | None:
        hashes = [wanted.identity.key_hash, wanted.identity.scope_hash]
        # An INSERT that meets its duplicate locks the gap beside the row until the transaction ends, even under READ
        # COMMITTED. A view that runs under an expired key would then block other new keys. So look first. Under READ
        # COMMITTED, Django's default, a subselect in the INSERT itself can look; elsewhere it would lock the gap, too.
        # Not INSERT ... SELECT: that statement waits for the table's AUTO-INC lock, and we do not wait.
        key_hash, params = "%s", as_new_row(wanted)
        if self.reads_committed:
            key_hash = f"(SELECT %s FROM DUAL WHERE NOT EXISTS ({self._seen_sql}))"
            params[1:1] = hashes
        elif self._fetch(self._seen_sql, hashes) is not None:
            return None
        limit, seconds = _limit(wanted.left)
        return self._insert_row(limit + self._insert_sql.format(key_hash=key_hash), [*seconds, *params])

    def _read(self, wanted: ClaimRequest) -> StoredKey | None:
        limit, seconds = _limit(wanted.left)
        with self._held_up():
            params = [*seconds, wanted.identity.key_hash, wanted.identity.scope_hash]
            return self._stored(limit + self._read_sql, params)

    def _take_over(self, row: Row, wanted: ClaimRequest) -> int | None:
        take_over = f"SET STATEMENT innodb_lock_wait_timeout = %s FOR {self._sql.take_over}"
        params = [TAKE_OVER_WAIT, wanted.fingerprint, wanted.policy, wanted.ttl, wanted.lease, *row.found_by]
        with self._held_up():
            taken = self._execute(take_over, params)
        return int(self._fetch(self._sql.read_attempt, row.found_by)[0]) if taken == 1 else None

    def _resume(self, stored: StoredKey, wanted: ClaimRequest) -> Claimed | Conflicted | InDoubt:
        with self._held_up():
            return super()._resume(stored, wanted)


def _limit(seconds: float) -> tuple[str, list[Any]]:
    """The beginning of a statement that waits for locks for so many seconds at most, and its parameters."""
    if not seconds:
        return "SET STATEMENT innodb_lock_wait_timeout = 0 FOR ", []
    seconds = min(max(seconds, SHORTEST), LONGEST)
    # The lock wait timeout must not end the wait: it may roll back the caller's transaction.
    return "SET STATEMENT max_statement_time = %s, innodb_lock_wait_timeout = %s FOR ", [seconds, ceil(seconds) + 1]
