"""The leased half of a store: a committed claim, its lease and its steps.

# Note [Fencing]
A worker may sleep for a long time and wake up after its lease is over. So each of its transactions first locks the
claimed row, under the condition that the row is still in progress at the worker's own attempt. A takeover, or an
operator's decision, changes the attempt or the status under the same lock. So there are two cases only: the old worker
commits before the change; or it finds no row, and `LeaseLost` rolls back what it was about to commit. To test without a
lock whether the row is there would not be enough: both transactions could commit side by side.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

from ...exceptions import LeaseLost
from ...models import IdempotencyStep
from ..protocol.claims import ClaimRequest
from ..protocol.outcomes import Claimed, Row
from ..protocol.snapshots import Snapshot
from .database import Database
from .lease_queries import LeaseQueries
from .sealing import seal, seal_response, unseal

Kind = IdempotencyStep.Kind


class Leases(Database):
    """Renewing, fencing and the steps. Each method works inside its caller's transaction, if there is one."""

    def fence(self, claimed: Claimed) -> None:
        """Lock the claimed row until the transaction ends. Raises `LeaseLost`. See Note [Fencing].

        A SELECT, not an UPDATE: duplicates can read the row meanwhile, and need not wait for the end of the write.
        """
        if self._fetch(self._lease_sql.lock_own_claim, [claimed.id, claimed.attempt]) is None:
            raise lease_lost()

    def renew(self, claimed: Claimed, lease: float) -> None:
        """Lock the key for `lease` seconds from now. Raises `LeaseLost`."""
        self._execute_or(lease_lost, self._lease_sql.renew, [lease, claimed.id, claimed.attempt])

    def fail(self, claimed: Claimed, wanted: ClaimRequest, error: str) -> None:
        """End an attempt without a final result: the next retry may run at once. Raises `LeaseLost`."""
        self._execute_or(
            lease_lost,
            self._lease_sql.fail,
            [wanted.ttl, seal(claimed, "last_error", error), claimed.id, claimed.attempt],
        )

    def timeliness(self, row_id: int) -> tuple[bool, bool]:
        """Whether this key has expired, and whether its lease is over. A deleted key has expired."""
        expired, lapsed = self._fetch(self._lease_sql.timeliness, [row_id]) or (True, False)
        return bool(expired), bool(lapsed)

    # --- steps

    def steps(self, claimed: Claimed) -> dict[str, tuple[bool, str | None]]:
        """The steps of earlier attempts by name: whether they are finished, and the result."""
        with self._cursor() as cursor:
            cursor.execute(self._lease_sql.read_steps, [claimed.id])
            rows = cursor.fetchall()
        # All of them at once: an attempt that cannot read what was done must do nothing.
        return {name: (finished is not None, unseal(claimed, "result", kept, name)) for name, finished, kept in rows}

    def start_call(self, claimed: Claimed, name: str, *, again: bool) -> None:
        """Record that a call is about to be made. Raises `LeaseLost`.

        again: an earlier attempt has started the call already.
        """
        # An UPDATE that changes nothing but the row's version. Under REPEATABLE READ, a takeover with an older snapshot
        # fails on that version. Without it, the takeover would not see the call that is in doubt from now on.
        self._execute_or(lease_lost, self._lease_sql.touch, [claimed.id, claimed.attempt])
        if again:
            self._execute(self._lease_sql.restart_step, [claimed.attempt, claimed.id, name])
        else:
            params = [claimed.id, name, Kind.CALL.value, claimed.attempt, None]
            self._execute(self._lease_sql.add_started_step, params)

    def finish_call(self, row: Row | Claimed, name: str, result: str | None) -> bool:
        """Record a call's result; None: the call is done, but its value could not be kept. Lock the key first.

        False if the call is not in doubt.
        """
        return self._execute(self._lease_sql.finish_step, [seal(row, "result", result, name), row.id, name]) == 1

    def note_error(self, claimed: Claimed, name: str, error: str) -> None:
        """Record why a call is in doubt. Call `fence` first."""
        self._execute(self._lease_sql.note_error, [seal(claimed, "error", error, name), claimed.id, name])

    def record_write(self, claimed: Claimed, name: str, result: str) -> None:
        """Record a local write's result, in the transaction of the write. Call `fence` first."""
        params = [claimed.id, name, Kind.WRITE.value, claimed.attempt, seal(claimed, "result", result, name)]
        self._execute(self._lease_sql.add_finished_step, params)

    # --- what an operator decides: see `maintenance.resolution`

    def lock_resolvable(self, row_id: int, attempt: int) -> Row | None:
        """Lock a failed or abandoned key until the transaction ends. None if the key is neither."""
        hashes = self._fetch(self._lease_sql.lock_resolvable, [row_id, attempt])
        return None if hashes is None else Row(key_hash=hashes[0], scope_hash=hashes[1], id=row_id)

    def set_failed(self, row_id: int, ttl: float) -> None:
        """Take the key away from its worker: no fence of this attempt holds any more. Lock the key first."""
        self._execute(self._lease_sql.set_failed, [ttl, row_id])

    def forget_doubts(self, row_id: int) -> None:
        """Delete the calls in doubt, as if they had never been started. Lock the key first."""
        self._execute(self._lease_sql.delete_doubts, [row_id])

    def close(self, row: Row, snapshot: Snapshot) -> None:
        """Complete a failed key with this response. Lock the key first."""
        params: list[Any] = [snapshot.status_code, *seal_response(row, snapshot), row.id]
        self._execute(self._lease_sql.close, params)

    # --- for the claim

    def _doubts(self, row_id: int) -> tuple[str, ...]:
        """The names of the calls that were started and have no result."""
        with self._cursor() as cursor:
            cursor.execute(self._lease_sql.read_doubts, [row_id])
            return tuple(name for (name,) in cursor.fetchall())

    def _delete_steps(self, row_id: int) -> None:
        self._execute(self._lease_sql.delete_steps, [row_id])

    @cached_property
    def _lease_sql(self) -> LeaseQueries:
        return LeaseQueries(self.dialect, self._quote)


def lease_lost() -> LeaseLost:
    return LeaseLost(
        "The lease of this operation was over, and another worker has taken its idempotency key over, or an operator "
        "has decided its outcome. Nothing of this step was committed. If the work is slow, pass a longer lease= or "
        "call operation.renew() in between."
    )
