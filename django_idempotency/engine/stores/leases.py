"""The leased half of a store: a committed claim, its lease and its steps.

# Note [Fencing]
A worker may sleep for a long time and wake up after its lease is over. So each of its transactions first locks the
claimed row, under the condition that the row is still in progress at the worker's own attempt. A takeover, or an
operator's decision, changes the attempt or the status under the same lock. So there are two cases only: the old worker
commits before the change; or it finds no row, and `LeaseLost` rolls back what it was about to commit. To test without a
lock whether the row is there would not be enough: both transactions could commit side by side.

The condition names the hashes of the identity, too. With a schema or a database for each tenant, the work may leave
the connection in another tenant's schema (`SET search_path`, `USE`). There, id and attempt could match another key.
The hashes also tell the database which partition holds the row.

A step that is one statement locks the row in that statement, and commits by itself. The database looks again at the
row that the statement had to wait for, so the lock and the condition hold for what is committed then.

# Note [Lost answers]
A connection may break after a statement was sent and before its answer has come. Then the statement may have been
committed, as with a COMMIT whose answer is lost. So each step must be right in both cases:

* The claim: the error propagates. If the claim was committed, the key waits for its lease. Nothing was done under it.
* The start of a call: the error propagates, and nothing is called. If the start was committed, the call is in doubt.
* The end of a call is sent again, on a new connection. If the first was committed, the second finds no unfinished step
  under a fence that holds, and changes nothing.
* A write: the error propagates, and the key is failed. The next attempt reads whether the step was committed.
* The completion: the key is failed, and the next attempt finds its steps. If the completion was committed, the fence of
  the failure does not hold, and the client gets the stored response.

# Note [Writes in doubt]
A local write records "started" in its own transaction, and its result at the end. So no other request ever sees that
it was started, unless the write has ended the transaction in the middle (DDL on MariaDB, a raw COMMIT). Then the step
stays without a result in every case, also after `kill -9`. It is unknown what was committed: the key is held.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

from ...exceptions import LeaseLost
from ...models import IdempotencyKey, IdempotencyStep
from ..protocol.claims import ClaimRequest
from ..protocol.outcomes import Claimed, Resource, Row
from ..protocol.snapshots import Snapshot
from .database import Database
from .lease_queries import LeaseQueries
from .sealing import seal, seal_response, unseal

Kind = IdempotencyStep.Kind


class Leases(Database):
    """Renewing, fencing and the steps. Each method works inside its caller's transaction, if there is one."""

    def fence(self, claimed: Claimed) -> None:
        """Lock the claimed row until the transaction ends. Raises `LeaseLost`. See Note [Fencing].

        A SELECT, not an UPDATE: duplicates can read the row meanwhile, and need not wait for its end.
        """
        if self._fetch(self._lease_sql.lock_own_claim, claimed.fence) is None:
            raise lease_lost()

    def renew(self, claimed: Claimed, lease: float) -> None:
        """Lock the key for `lease` seconds from now. Raises `LeaseLost`."""
        self._execute_or(lease_lost, self._lease_sql.renew, [lease, *claimed.fence])

    def fail(self, claimed: Claimed, wanted: ClaimRequest, error: str) -> None:
        """End an attempt without a final result: the next retry may run at once. Raises `LeaseLost`."""
        params = [wanted.ttl, seal(claimed, "last_error", error), *claimed.fence]
        self._execute_or(lease_lost, self._lease_sql.fail, params)

    def refer(self, claimed: Claimed, resource: Resource) -> None:
        """Keep what the operation is about. Raises `LeaseLost`."""
        self._execute_or(lease_lost, self._lease_sql.refer, [*resource, *claimed.fence])

    def timeliness(self, key_hash: int, scope_hash: int) -> tuple[bool, bool]:
        """Whether this key has expired, and whether its worker has left it. A deleted key has expired."""
        expired, abandoned = self._fetch(self._lease_sql.timeliness, [key_hash, scope_hash]) or (True, False)
        return bool(expired), bool(abandoned)

    # --- steps

    def steps(self, claimed: Claimed) -> dict[str, tuple[bool, str | None]]:
        """The steps of the key by name: whether they are finished, and the result. Raises `LeaseLost`."""
        rows = self._fetch_all(self._lease_sql.read_steps, claimed.fence)
        if not rows:
            raise lease_lost()
        # All of them at once: an attempt that cannot read what was done must do nothing.
        return {
            name: (finished is not None, unseal(claimed, "result", kept, name))
            for name, finished, kept in rows
            if name is not None
        }

    def start_call(self, claimed: Claimed, name: str, *, again: bool) -> None:
        """Record that a call is about to be made. Raises `LeaseLost`. Opens a transaction if it needs one.

        again: an earlier attempt has started the call already.
        """
        if again:
            self._execute_or(lease_lost, self._lease_sql.restart_step, [claimed.attempt, *claimed.fence, name])
        else:
            self._execute_or(lease_lost, self._lease_sql.start_step, [name, Kind.CALL.value, *claimed.fence])

    def finish_call(self, claimed: Claimed, name: str, result: str | None) -> None:
        """Record a call's result; None: the call is done, but its value could not be kept. Raises `LeaseLost`.

        One statement, which may be sent twice. See Note [Lost answers].
        """
        params = [seal(claimed, "result", result, name), *claimed.fence, name]
        if not self._execute(self._lease_sql.finish_call, params):
            self.fence(claimed)  # it holds: the call was finished by the first of two tries

    def keep_fetched(self, claimed: Claimed, name: str, result: str) -> None:
        """Record an external read and its result: one statement, which is its own fence. Raises `LeaseLost`."""
        params = [name, Kind.FETCH.value, seal(claimed, "result", result, name), *claimed.fence]
        self._execute_or(lease_lost, self._lease_sql.keep_fetched, params)

    def note_error(self, claimed: Claimed, name: str, error: str) -> None:
        """Record why a call is in doubt, if the claim is not lost. One statement."""
        self._execute(self._lease_sql.note_error, [seal(claimed, "error", error, name), *claimed.fence, name])

    def start_write(self, claimed: Claimed, name: str) -> None:
        """Lock the claimed row as `fence` does, and record that a local write is about to run. Raises `LeaseLost`.

        The first statement in the transaction of the write: the BEGIN may travel with it. See Note [Writes in doubt].
        """
        self._begin_with(lease_lost, self._lease_sql.start_step, [name, Kind.WRITE.value, *claimed.fence])

    def finish_write(self, claimed: Claimed, name: str, result: str) -> None:
        """Record a local write's result. Raises `LeaseLost`.

        The last statement in the transaction of the write: the COMMIT may travel with it. Then errors of the COMMIT are
        raised from here.
        """
        params = [seal(claimed, "result", result, name), *claimed.fence, name]
        self._end_with(lease_lost, self._lease_sql.finish_step, params)

    # --- what an operator decides: see `maintenance.resolution`

    def lock_resolvable(self, row_id: int, attempt: int) -> tuple[Row, str | None] | None:
        """Lock a failed or abandoned key until the transaction ends: the row, and its trail of decisions.

        None if the key is neither.

        Also None if the id is of several keys. In a partitioned table, only a sequence makes ids unique.
        """
        rows = self._fetch_all(self._lease_sql.lock_resolvable, [row_id, attempt])
        if len(rows) != 1:
            return None
        key_hash, scope_hash, decisions = rows[0]
        return Row(key_hash=key_hash, scope_hash=scope_hash, id=row_id), decisions

    def set_failed(self, row: Row, ttl: float, decisions: str | None) -> None:
        """Take the key away from its worker: no fence of this attempt holds any more. Lock the key first.

        ttl: seconds that it is kept from now on, if the time that was set at the claim is over sooner.
        decisions: the trail to store with it.
        """
        self._execute(self._lease_sql.set_failed, [decisions, *row.found_by])
        # The view may have a longer `ttl` than the project: a late retry must not find the key gone.
        self._execute(self._lease_sql.keep_longer, [ttl, *row.found_by, ttl])

    def record_result(self, row: Row, name: str, result: str) -> bool:
        """Record what a person knows about a step. False if the step is not in doubt. Lock the key first."""
        return self._execute(self._lease_sql.record_result, [seal(row, "result", result, name), row.id, name]) == 1

    def fail_harmless(self, row: Row | IdempotencyKey, attempt: int, ttl: float, decisions: str | None) -> bool:
        """End an abandoned attempt that has called nothing outside. False if it is not. Lock the key first.

        ttl: seconds that it is kept from now on, if the time that was set at the claim is over sooner.
        decisions: the trail to store with it.
        """
        found_by = [row.key_hash, row.scope_hash, row.id]
        if self._execute(self._lease_sql.fail_harmless, [decisions, *found_by, attempt]) != 1:
            return False
        self._execute(self._lease_sql.keep_longer, [ttl, *found_by, ttl])
        return True

    def forget_doubts(self, row_id: int) -> None:
        """Delete the calls in doubt, as if they had never been started. Lock the key first."""
        self._execute(self._lease_sql.delete_doubts, [row_id])

    def close(self, row: Row, snapshot: Snapshot) -> None:
        """Complete a failed key with this response. Lock the key first."""
        params: list[Any] = [snapshot.status_code, *seal_response(row, snapshot), *row.found_by]
        self._execute(self._lease_sql.close, params)

    # --- for the claim

    def _doubts(self, row_id: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The names of the calls, and of the writes, that were started and have no result."""
        rows = self._fetch_all(self._lease_sql.read_doubts, [row_id])
        calls = tuple(name for name, kind in rows if kind == Kind.CALL.value)
        return calls, tuple(name for name, kind in rows if kind != Kind.CALL.value)

    def _has_steps(self, row_id: int) -> bool:
        return self._fetch(self._lease_sql.find_step, [row_id]) is not None

    def _delete_steps(self, row_id: int) -> None:
        self._execute(self._lease_sql.delete_steps, [row_id])

    @cached_property
    def _lease_sql(self) -> LeaseQueries:
        return LeaseQueries(self.dialect, self._quote)


def lease_lost() -> LeaseLost:
    return LeaseLost(
        "The lease of this operation was over, and another worker has taken its idempotency key over, or an operator "
        "has decided its outcome. Nothing of this step was committed. If the work is slow, pass a longer lease= or "
        "call operation.renew() in between. If the work switches the schema or the database (search_path, USE), let it "
        "switch back before each step and before it returns."
    )
