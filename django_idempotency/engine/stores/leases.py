"""The leased half of the contract: a committed claim, its lease and its steps.

# Note [Fencing]
A worker may sleep for as long as it likes and wake up when its lease is long over. So whatever it writes under its
claim begins by locking the claimed row under the condition that it is still the worker's own: same attempt, still in
progress. Whoever takes the key over, or decides its outcome by hand, changes one of the two, under the same lock:
either the zombie commits before, or it finds no row, and `LeaseLost` rolls back what it was about to commit. A plain
existence test would not do: it lets both commit side by side.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, ClassVar

from ...exceptions import LeaseLost
from ...models import IdempotencyStep
from ..protocol.snapshots import Snapshot, encode_headers

if TYPE_CHECKING:
    from django.db.backends.utils import CursorWrapper

    from ..protocol.claims import ClaimRequest
    from ..protocol.outcomes import Claimed
    from .statements import Statements

Kind = IdempotencyStep.Kind


class Leases:
    """Renewing, fencing and the steps. Each method works inside its caller's transaction, if there is one."""

    if TYPE_CHECKING:
        clock: ClassVar[str]

        def _cursor(self) -> AbstractContextManager[CursorWrapper]: ...
        @property
        def _sql(self) -> Statements: ...

    def fence(self, claimed: Claimed) -> None:
        """Lock the claimed row until the transaction ends. Raises `LeaseLost`. See Note [Fencing].

        No UPDATE: duplicates read the row without waiting for as long as the write takes.
        """
        with self._cursor() as cursor:
            cursor.execute(self._sql.fence, [claimed.id, claimed.attempt])
            if cursor.fetchone() is None:
                raise lost()

    def renew(self, claimed: Claimed, lease: float) -> None:
        """Lock the key for `lease` seconds from now. Raises `LeaseLost`."""
        self._fenced(self._sql.renew, [lease, claimed.id, claimed.attempt])

    def fail(self, claimed: Claimed, claim: ClaimRequest, error: str) -> None:
        """The attempt came to nothing final: the next retry may run at once. Raises `LeaseLost`."""
        self._fenced(self._sql.fail, [claim.ttl, error, claimed.id, claimed.attempt])

    def steps(self, claimed: Claimed) -> dict[str, tuple[bool, str | None]]:
        """The steps of earlier attempts by name: finished?, result."""
        with self._cursor() as cursor:
            cursor.execute(self._sql.read_steps, [claimed.id])
            return {name: (finished_at is not None, result) for name, finished_at, result in cursor.fetchall()}

    def start_call(self, claimed: Claimed, name: str, *, again: bool) -> None:
        """Say that a call is about to be made. Raises `LeaseLost`.

        again: it was started by an earlier attempt already.
        """
        with self._cursor() as cursor:
            # An UPDATE that changes nothing but the row's version: under REPEATABLE READ a takeover that has taken
            # its snapshot before fails on it, instead of overlooking the call that is in doubt from now on.
            cursor.execute(self._sql.touch, [claimed.id, claimed.attempt])
            if cursor.rowcount != 1:
                raise lost()
            if again:
                cursor.execute(self._sql.restart_step, [claimed.attempt, claimed.id, name])
            else:
                sql = self._sql.add_step.format(finished_at="NULL")
                cursor.execute(sql, [claimed.id, name, Kind.CALL.value, claimed.attempt, None])

    def finish_call(self, row_id: int, name: str, result: str | None) -> bool:
        """Keep a call's result; None: it is done, but has no value that could be kept. `fence` or lock the key first.

        False if the call is not in doubt.
        """
        with self._cursor() as cursor:
            cursor.execute(self._sql.finish_step, [result, row_id, name])
            return bool(cursor.rowcount == 1)

    def note_error(self, claimed: Claimed, name: str, error: str) -> None:
        """Say why a call is in doubt. Call `fence` first."""
        with self._cursor() as cursor:
            cursor.execute(self._sql.note_error, [error, claimed.id, name])

    def record_write(self, claimed: Claimed, name: str, result: str) -> None:
        """Keep a local write's result, in the transaction of the write. Call `fence` first."""
        with self._cursor() as cursor:
            sql = self._sql.add_step.format(finished_at=self.clock)
            cursor.execute(sql, [claimed.id, name, Kind.WRITE.value, claimed.attempt, result])

    # --- a person's decisions: see `execution.resolution`

    def lock_resolvable(self, row_id: int, attempt: int) -> bool:
        """Lock a key that nobody works on until the transaction ends; False if there is no such key."""
        with self._cursor() as cursor:
            cursor.execute(self._sql.lock_resolvable, [row_id, attempt])
            return cursor.fetchone() is not None

    def set_failed(self, row_id: int, ttl: float) -> None:
        """No worker of this attempt passes its fence any more, and the next retry may run. Lock the key first."""
        with self._cursor() as cursor:
            cursor.execute(self._sql.set_failed, [ttl, row_id])

    def forget_doubts(self, row_id: int) -> None:
        """As if the calls in doubt had never been started. Lock the key first."""
        with self._cursor() as cursor:
            cursor.execute(self._sql.delete_doubts, [row_id])

    def close(self, row_id: int, snapshot: Snapshot) -> None:
        """Complete a failed key. Lock it first."""
        with self._cursor() as cursor:
            params: list[Any] = [snapshot.status_code, encode_headers(snapshot.headers), snapshot.body, row_id]
            cursor.execute(self._sql.close, params)

    def timeliness(self, row_id: int) -> tuple[bool, bool]:
        """Has this key expired, and has its lease lapsed? By the database's clock; a key that is gone has expired."""
        with self._cursor() as cursor:
            cursor.execute(self._sql.timeliness, [row_id])
            expired, lapsed = cursor.fetchone() or (True, False)
        return bool(expired), bool(lapsed)

    def count_stuck(self) -> int:
        """How many keys are in progress under a lease that nobody has renewed in time."""
        return self._count(self._sql.are_stuck)

    def count_in_doubt(self) -> int:
        """How many keys nobody works on whose external call may or may not have happened."""
        return self._count(self._sql.are_in_doubt)

    def live_ids(self, limit: int) -> list[int]:
        """Primary keys of keys whose worker holds a lease, at most `limit`."""
        return self._ids(self._sql.are_live, limit, order=self._sql.by_lease)

    def stuck_ids(self, limit: int, among: list[int] | None = None) -> list[int]:
        """Primary keys of stuck keys, at most `limit`; among: of these only."""
        return self._ids(self._sql.are_stuck, limit, among, order=self._sql.by_lease)

    def in_doubt_ids(self, limit: int, among: list[int] | None = None) -> list[int]:
        """Primary keys of keys in doubt, at most `limit`; among: of these only."""
        return self._ids(self._sql.are_in_doubt, limit, among)

    def _ids(self, condition: str, limit: int, among: list[int] | None = None, order: str = "") -> list[int]:
        id_, params = self._sql.column["id"], among or []
        if among is not None:
            if not among:
                return []
            condition = f"{condition} AND {id_} IN ({', '.join(['%s'] * len(among))})"
        with self._cursor() as cursor:
            sql = f"SELECT {id_} FROM {self._sql.table} WHERE {condition} {order} LIMIT %s"
            cursor.execute(sql, [*params, limit])
            return [row[0] for row in cursor.fetchall()]

    def _count(self, condition: str) -> int:
        with self._cursor() as cursor:
            # The empty list: substituting parameters halves the doubled percent signs of SQLite's clock.
            cursor.execute(f"SELECT count(*) FROM {self._sql.table} WHERE {condition}", [])
            return int(cursor.fetchone()[0])

    def _fenced(self, sql: str, params: list[Any]) -> None:
        """One statement whose condition is its own fence."""
        with self._cursor() as cursor:
            cursor.execute(sql, params)
            if cursor.rowcount != 1:
                raise lost()


def lost() -> LeaseLost:
    return LeaseLost(
        "The lease of this operation had lapsed and somebody else has taken its idempotency key over, or an operator "
        "has decided its outcome. Nothing of this step was committed. If the work is slow, pass a longer lease= or "
        "call operation.renew() in between."
    )
