"""MySQL: a locking read that does not wait tells which key is in flight.

The locking read stands in the INSERT itself, so that a first request costs no statement more than elsewhere. It locks
the row alone (FOR UPDATE). So of several requests for one expired key, one gets the row, and none waits for another.

A duplicate that comes between the two halves of that statement, within some microseconds, waits for the first request
to end. The same happens to two waiting duplicates when the first request rolls back.

A key may come again after it was deleted, and before InnoDB has purged the deleted row. Its INSERT then locks the gap
beside that row, and other new keys with a hash in that gap wait for its request to end.
"""

from __future__ import annotations

import math
from functools import cached_property

from ..protocol.claims import ClaimRequest
from ..protocol.decision import StoredKey, decide
from ..protocol.outcomes import ClaimOutcome, Conflicted, Row
from .dialect import Dialect
from .innodb import CLOCK, LATER, LOCK_WAIT_TIMEOUT, SECONDS_UNTIL, InnoDBStore
from .queries import as_new_row
from .store import KeyLocked

LOCK_NOWAIT = 3572
QUERY_TIMEOUT = 3024
SET_WAIT = "SET @idempotency_wait = @@SESSION.innodb_lock_wait_timeout, SESSION innodb_lock_wait_timeout = %s"
RESTORE_WAIT = "SET SESSION innodb_lock_wait_timeout = @idempotency_wait"


class MySQLStore(InnoDBStore):
    gave_up = frozenset({LOCK_NOWAIT, LOCK_WAIT_TIMEOUT, QUERY_TIMEOUT})
    dialect = Dialect(
        clock=CLOCK,
        clock_once=CLOCK,
        later=LATER,
        seconds_until=SECONDS_UNTIL,
        skip_locked="FOR UPDATE SKIP LOCKED",
        lock="FOR UPDATE",
        lock_or_skip="FOR UPDATE SKIP LOCKED",
        share="FOR SHARE",
        # In a small table the optimizer may choose the index on expires_at, and lock all of its range.
        by_id="FORCE INDEX (PRIMARY)",
        # And it may read the whole table, and lock every row of it.
        by_expiry="FORCE INDEX (idempotency_expires_idx)",
    )

    def claim(self, wanted: ClaimRequest) -> ClaimOutcome:
        wanted = wanted.begun()
        outcome = super().claim(wanted)
        while isinstance(outcome, Conflicted) and self._await_row(wanted):
            outcome = super().claim(wanted)
        return outcome

    # --- the pieces of SQL

    @cached_property
    def _guard(self) -> str:
        """The key_hash, or NULL if the key is stored already. Parameters: key_hash; key_hash, scope_hash.

        The read is a derived table, because MySQL refuses to read the table that a statement writes (1093). A plain
        read would not do: inside of an INSERT it is a locking read that waits. SKIP LOCKED would not do: it returns no
        row for a key in flight.
        """
        return f"(SELECT %s FROM DUAL WHERE NOT EXISTS (SELECT 1 FROM ({self._seen_sql} FOR UPDATE NOWAIT) AS seen))"

    @cached_property
    def _read_sql(self) -> str:
        """Read the row as committed now, and lock it. Parameters: key_hash, scope_hash."""
        return f"{self._sql.look} FOR UPDATE NOWAIT"

    @cached_property
    def _await_sql(self) -> str:
        """Read the row when no other transaction holds it. Parameters: milliseconds, key_hash, scope_hash."""
        sql = self._sql
        return (
            f"SELECT /*+ MAX_EXECUTION_TIME(%s) */ {sql.stored_key} FROM {sql.table} WHERE {sql.same_hashes} FOR UPDATE"
        )

    # --- the claim

    def _claim_once(self, wanted: ClaimRequest) -> ClaimOutcome | None:
        try:
            return super()._claim_once(wanted)
        except KeyLocked:
            if not self.reads_committed:
                raise
        # Another transaction holds the row, maybe only to replay it. What is committed can be read without a lock.
        with self._held_up():
            return self.look(wanted)

    def _insert(self, wanted: ClaimRequest) -> int | None:
        if not self.reads_committed:
            return self._insert_after_looking(wanted)
        key_hash, *rest = as_new_row(wanted)
        params = [key_hash, key_hash, wanted.identity.scope_hash, *rest]
        # Not INSERT ... SELECT: that statement may hold the table's AUTO-INC lock, which stops other new keys.
        return self._insert_row(self._insert_sql.format(key_hash=self._guard), params)

    def _insert_after_looking(self, wanted: ClaimRequest) -> int | None:
        """Insert under another isolation level, where a guard would lock the gap in which the key is not.

        A duplicate of a key in flight has to wait here, and MySQL's shortest wait is a second.
        """
        hashes = [wanted.identity.key_hash, wanted.identity.scope_hash]
        self._execute(SET_WAIT, [max(1, math.ceil(wanted.left))])
        try:
            # Look first: an INSERT that meets its duplicate locks the gap beside the row. Under SERIALIZABLE a look
            # would do that, too.
            if self._isolation != "serializable" and self._has_seen(hashes):
                return None
            return self._insert_row(self._insert_sql.format(key_hash="%s"), as_new_row(wanted))
        finally:
            self._execute(RESTORE_WAIT, [])

    def _has_seen(self, hashes: list[int]) -> bool:
        with self._held_up():
            return self._fetch(self._seen_sql, hashes) is not None

    def _read(self, wanted: ClaimRequest) -> StoredKey | None:
        with self._held_up():
            return self._stored(self._read_sql, [wanted.identity.key_hash, wanted.identity.scope_hash])

    def _take_over(self, row: Row, wanted: ClaimRequest) -> int | None:
        with self._held_up():
            params = [wanted.fingerprint, wanted.policy, wanted.ttl, wanted.lease, *row.found_by]
            taken = self._execute(self._sql.take_over, params)
        return int(self._fetch(self._sql.read_attempt, row.found_by)[0]) if taken == 1 else None

    def _await_row(self, wanted: ClaimRequest) -> bool:
        """Wait until no other transaction holds the row. Whether a new claim may come out otherwise."""
        milliseconds = math.ceil(wanted.left * 1000)
        if not milliseconds:
            return False
        identity = wanted.identity
        try:
            with self._held_up():
                stored = self._stored(self._await_sql, [milliseconds, identity.key_hash, identity.scope_hash])
        except KeyLocked:
            return True  # the time is up, or the server's own timeout is shorter
        return stored is None or decide(stored, wanted) != Conflicted()
