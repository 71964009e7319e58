"""MariaDB: a lock wait on the unique index tells which key is in flight. A timeout of 0 cuts the wait short.

A duplicate of a running request would wait on the index record of the uncommitted row. With that timeout, the duplicate
gets error 1205 at once, which rolls back the one statement. The exception is a server with innodb_rollback_on_timeout,
where 1205 rolls back the transaction. The timeout is that of the statement: the session keeps its own.
"""

from __future__ import annotations

from ..protocol.claims import ClaimRequest
from ..protocol.outcomes import Completed, Conflicted, InDoubt, Mismatched, TooOld
from .innodb import LOCK_WAIT_TIMEOUT, InnoDBStore
from .queries import values_of

AT_ONCE = "SET STATEMENT innodb_lock_wait_timeout = 0 FOR "


class MariaDBStore(InnoDBStore):
    gave_up = frozenset({LOCK_WAIT_TIMEOUT})
    share = AT_ONCE + "{} LOCK IN SHARE MODE"

    def _insert(self, wanted: ClaimRequest) -> int | None:
        values = values_of(wanted)
        # An INSERT that meets its duplicate locks the gap beside the row until the transaction ends, even under READ
        # COMMITTED. A view that runs under an expired key would then block other new keys. So look first. Under READ
        # COMMITTED a subselect in the INSERT itself can look; elsewhere it would lock the gap, too.
        # Not INSERT ... SELECT: that statement waits for the table's AUTO-INC lock, and we do not wait.
        key_hash = "%(key_hash)s"
        if self.reads_committed:
            key_hash = f"(SELECT {key_hash} FROM DUAL WHERE NOT EXISTS ({self._sql.seen}))"
        elif self._fetch(self._sql.seen, values) is not None:
            return None
        return self._insert_row(AT_ONCE + self._sql.insert(key_hash=key_hash), values)

    def look(self, wanted: ClaimRequest) -> Completed | Mismatched | Conflicted | InDoubt | TooOld:
        # A Galera node ends a transaction before the node shows what the winner has committed. So wait for that.
        if self._fetch("SHOW VARIABLES LIKE 'wsrep_on'") == ("wsrep_on", "ON"):
            self._fetch("SET STATEMENT wsrep_sync_wait = 1 FOR " + self._sql.seen, values_of(wanted))
        return super().look(wanted)
