"""MySQL: a locking read that does not wait tells which key is in flight.

The locking read stands in the INSERT itself, so that a first request costs no statement more than elsewhere. It locks
the row alone (FOR UPDATE). So of several requests for one expired key, one gets the row, and none waits for another.

A duplicate that comes between the two halves of that statement, within some microseconds, waits for the first request
to end. So does each duplicate of a running request under another isolation level than READ COMMITTED: there, the
locking read would lock the gap in which the key is not. `innodb_lock_wait_timeout` limits both.

A key may come again after it was deleted, and before InnoDB has purged the deleted row. Its INSERT then locks the gap
beside that row, and other new keys with a hash in that gap wait for its request to end.
"""

from __future__ import annotations

from dataclasses import replace

from ..protocol.claims import ClaimRequest
from .innodb import DIALECT, LOCK_WAIT_TIMEOUT, InnoDBStore
from .queries import values_of

LOCK_NOWAIT = 3572


class MySQLStore(InnoDBStore):
    gave_up = frozenset({LOCK_NOWAIT, LOCK_WAIT_TIMEOUT})
    share = "{} FOR SHARE NOWAIT"
    # The optimizer may read the whole table, and lock every row of it.
    dialect = replace(DIALECT, by_expiry="FORCE INDEX (idempotency_expires_idx)")

    def _insert(self, wanted: ClaimRequest) -> int | None:
        values = values_of(wanted)
        if self.reads_committed:
            # A derived table, because MySQL refuses to read the table that a statement writes (1093). A plain read
            # would not do: inside of an INSERT it is a locking read that waits. SKIP LOCKED would not do: it returns no
            # row for a key in flight. Not INSERT ... SELECT: that may hold the table's AUTO-INC lock.
            seen = f"SELECT 1 FROM ({self._sql.seen} FOR UPDATE NOWAIT) AS seen"
            guard = f"(SELECT %(key_hash)s FROM DUAL WHERE NOT EXISTS ({seen}))"
            return self._insert_row(self._sql.insert(key_hash=guard), values)
        # Look first: an INSERT that meets its duplicate locks the gap beside the row. Under SERIALIZABLE a look would
        # do that, too.
        if self._isolation != "serializable" and self._fetch(self._sql.seen, values) is not None:
            return None
        return self._insert_row(self._sql.insert(), values)
