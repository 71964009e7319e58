"""The contract of a store: claim a key, and keep or give up the claim.

A store works on the connection of its alias, inside the transaction that its caller has opened. What the store writes
commits or rolls back together with the business write. All times come from the database's clock.
"""

from __future__ import annotations

from abc import abstractmethod
from contextlib import suppress
from functools import cached_property
from typing import Any, assert_never

from django.db import transaction

from ...exceptions import ClaimLost
from ..protocol.claims import ClaimRequest
from ..protocol.decision import Resume, StoredKey, TakeOver, decide, resumed
from ..protocol.digests import Identity
from ..protocol.outcomes import Claimed, ClaimOutcome, Completed, Conflicted, InDoubt, Mismatched, Resource, Row, TooOld
from ..protocol.snapshots import Snapshot
from .database import Database
from .journal import Journal
from .queries import ClaimQueries, as_stored_key
from .running import RunningTransaction
from .sealing import seal, seal_response


class KeyLocked(Exception):
    """Another transaction is working on this key right now. Never leaves the stores."""


class Store(Database):
    """The key table of one database alias."""

    @cached_property
    def journal(self) -> Journal:
        """The leases and the steps of leased mode."""
        return Journal(self.alias)

    # --- what the engine calls

    def claim(self, wanted: ClaimRequest) -> ClaimOutcome:
        """Claim a key, or say why not. The first statement of its transaction; blocks for at most `wait`.

        May mark the transaction for rollback when the outcome is `Conflicted`. Database errors propagate.
        """
        return self._claim_in_rounds(wanted.begun())

    def claim_and_commit(self, wanted: ClaimRequest) -> ClaimOutcome:
        """Claim a key for good, or say why not. Does not wait: `wanted.wait` is 0.

        The usual outcomes take no transaction: each statement commits by itself. Another attempt of a known key takes
        one (inside an outer `atomic()`: a savepoint). Database errors propagate: see Note [Lost answers].
        """
        with suppress(KeyLocked):
            if (row_id := self._insert(wanted)) is not None:
                return new_claim(row_of(row_id, wanted), attempt=1)
            decision = None if (stored := self._read(wanted)) is None else decide(stored, wanted)
            if not isinstance(decision, TakeOver | Resume | None):
                return decision
        with transaction.atomic(using=self.alias):
            return self._claim_in_rounds(wanted)

    def resume(self, wanted: ClaimRequest, attempt: int) -> Claimed | Conflicted | InDoubt:
        """Begin the next attempt of a failed or abandoned key, as `claim` does for a retry. Never inserts a row.

        The first statement of its transaction. Fingerprint and steps stay as they are.

        attempt: the attempt at which the caller has seen the key. At another one, the outcome is `Conflicted`.
        """
        stored = self._stored(self._sql.look, [wanted.identity.key_hash, wanted.identity.scope_hash])
        if stored is None or stored.attempt != attempt:
            return Conflicted()
        match decide(stored, wanted):
            case Resume():
                return self._resume(stored, wanted)
            case InDoubt() as doubt:
                return doubt
            case _:
                return Conflicted()

    def look(self, wanted: ClaimRequest) -> Completed | Mismatched | Conflicted | InDoubt | TooOld:
        """The answer that a duplicate of this request would get now. Claims nothing and locks nothing."""
        identity = wanted.identity
        stored = self._stored(self._look_sql(), [identity.key_hash, identity.scope_hash])
        decision = Conflicted() if stored is None else decide(stored, wanted)
        return Conflicted() if isinstance(decision, TakeOver | Resume) else decision

    def complete(
        self,
        claimed: Claimed,
        snapshot: Snapshot,
        *,
        ttl: float | None = None,
        resource: Resource | None = None,
        last: bool = False,
    ) -> None:
        """Store the response with the claim. Raises `ClaimLost` if the row does not belong to the claim any more.

        ttl: seconds that the response is kept from now on. None: the time that was set at the claim stands.
        resource: what the operation is about. None: what is stored stands.
        last: nothing but the end of the caller's `atomic()` follows, so the COMMIT may travel with the statement. Then
            errors of the COMMIT are raised from here.
        """
        response = [snapshot.status_code, *seal_response(claimed, snapshot)]
        if last and self._completed_at_once(claimed, response, ttl, resource):
            return
        sql = self._sql.complete(until=ttl is not None, about=resource is not None)
        params = [*response, *([] if ttl is None else [ttl]), *(resource or ()), *claimed.fence]
        end = self._end_with if last else self._execute_or
        end(claim_lost, sql, params)

    def release(self, claimed: Claimed) -> None:
        """Free the key, as if it had never been seen. Raises `ClaimLost` if the row is not the claim's any more.

        The last statement of the caller's `atomic()`: the COMMIT may travel with it, as with the `last` of `complete`.
        """
        self._end_with(claim_lost, self._sql.release, claimed.fence)

    def note_unleased(self, identity: Identity, error: str) -> bool:
        """Note on a committed claim without a lease that its work has not come to its end. False if there is none.

        Then the index of leases finds the row, and `stuck` lists it. Claims in atomic mode are not in that index: every
        completion would have to change it. See Note [A committed claim without a lease].
        """
        # First a plain read: an UPDATE could wait on MariaDB for a transaction that is claiming the key right now.
        if self._fetch(self._sql.find_unleased, [identity.key_hash, identity.scope_hash]) is None:
            return False
        return self._note(identity, error) == 1

    def note_expired_unleased(self, error: str, limit: int) -> None:
        """Note the same on such claims whose `ttl` is over, and that no retry has come across."""
        for key_hash, scope_hash, row_id in self._fetch_all(self._sql.find_expired_unleased, [limit]):
            self._note(Row(key_hash=key_hash, scope_hash=scope_hash, id=row_id), error)

    def _note(self, row: Row | Identity, error: str) -> int:
        params = [seal(row, "last_error", error), row.key_hash, row.scope_hash]
        return self._execute(self._sql.note_unleased, params)

    def owns(self, sql: str) -> bool:
        """Whether this is a statement about the package's own tables."""
        return self._sql.table in sql or self._sql.steps in sql

    # --- cleanup

    @abstractmethod
    def purge(self, batch_size: int, not_before: Any = None) -> tuple[int, Any]:
        """Delete up to `batch_size` expired keys in the current transaction.

        Returns the number of deleted keys, and the `not_before` for the next batch. With it, the next batch starts
        where this one has stopped, and need not step over the rows that were deleted before.
        """

    @property
    def expired(self) -> str:
        """The condition on the keys that `purge` deletes, as SQL for a query of the key table alone."""
        return self._sql.expired

    def count_expired(self) -> int:
        """How many keys `purge` would delete now."""
        # The empty list: without parameters, the doubled percent signs of SQLite's clock would stay doubled.
        return int(self._fetch(self._sql.count_expired, [])[0])

    def running(self) -> list[RunningTransaction] | None:
        """The open transactions that hold keys of atomic mode, the oldest first. None: this database does not tell."""
        return None

    # --- what a database brings

    @abstractmethod
    def _insert(self, wanted: ClaimRequest) -> int | None:
        """Insert the row. Its id, or None if the key is stored already or another transaction is inserting it."""

    @abstractmethod
    def _read(self, wanted: ClaimRequest) -> StoredKey | None:
        """The committed row, or None if there is none. Raises `KeyLocked` if another transaction works on it."""

    @abstractmethod
    def _take_over(self, row: Row, wanted: ClaimRequest) -> int | None:
        """Claim an expired row. The new attempt, or None if the row is not expired any more. Its steps stay."""

    def _completed_at_once(
        self, claimed: Claimed, response: list[Any], ttl: float | None, resource: Resource | None
    ) -> bool:
        """Complete and commit in a shorter way. False: there is none, and the transaction is as it was."""
        return False

    # --- shared

    @cached_property
    def _sql(self) -> ClaimQueries:
        return ClaimQueries(self.dialect, self._quote, self.alias)

    def _look_sql(self) -> str:
        """Read the row of an identity without locking it. Parameters: key_hash, scope_hash."""
        return self._sql.look

    def _claim_in_rounds(self, wanted: ClaimRequest) -> ClaimOutcome:
        try:
            # Two rounds: the row that stopped the first INSERT may have been deleted or completed since.
            for _ in range(2):
                if (outcome := self._claim_once(wanted)) is not None:
                    return outcome
        except KeyLocked:
            pass
        return Conflicted()

    def _claim_once(self, wanted: ClaimRequest) -> ClaimOutcome | None:
        """One round. None: another transaction has changed or deleted the row in between."""
        if (row_id := self._insert(wanted)) is not None:
            return new_claim(row_of(row_id, wanted), attempt=1)
        stored = self._read(wanted)
        return None if stored is None else self._answer(stored, wanted)

    def _answer(self, stored: StoredKey, wanted: ClaimRequest) -> ClaimOutcome | None:
        """What a stored key means for this request. None: as for `_claim_once`."""
        decision = decide(stored, wanted)
        match decision:
            case TakeOver():
                return self._claim_expired(stored, wanted)
            case Resume():
                return self._resume(stored, wanted)
            case Completed() | Mismatched() | Conflicted() | InDoubt() | TooOld():
                return decision
            case _:
                assert_never(decision)

    def _claim_expired(self, stored: StoredKey, wanted: ClaimRequest) -> Claimed | None:
        row = row_of(stored.id, wanted)
        attempt = self._take_over(row, wanted)
        if attempt is None:
            return None
        self.journal.delete_steps(stored.id)
        return new_claim(row, attempt)

    def _resume(self, stored: StoredKey, wanted: ClaimRequest) -> Claimed | Conflicted | InDoubt:
        """Begin the next attempt of a failed or abandoned key, unless one of its calls is in doubt.

        One request wins: it locks the row under the condition that nothing has changed since the row was read.
        """
        sql, found_by = self._sql, row_of(stored.id, wanted).found_by
        if self._fetch(sql.lock_for_resuming, [*found_by, stored.attempt, stored.status.value]) is None:
            return Conflicted()
        if wanted.lease is None and self.journal.has_steps(stored.id):
            # The view was leased once. Work in atomic mode would repeat the finished steps, which it does not know.
            return InDoubt(attempt=stored.attempt, resource=stored.resource)
        outcome = resumed(stored, wanted, *self.journal.doubts(stored.id))
        if isinstance(outcome, Claimed):
            self._execute(sql.resume, [wanted.policy, wanted.ttl, wanted.lease, *found_by])
        return outcome

    def _stored(self, sql: str, params: list[Any]) -> StoredKey | None:
        values = self._fetch(sql, params)
        return None if values is None else as_stored_key(values)


def row_of(row_id: int, wanted: ClaimRequest) -> Row:
    return Row(key_hash=wanted.identity.key_hash, scope_hash=wanted.identity.scope_hash, id=row_id)


def new_claim(row: Row, attempt: int) -> Claimed:
    return Claimed(key_hash=row.key_hash, scope_hash=row.scope_hash, id=row.id, attempt=attempt)


def claim_lost() -> ClaimLost:
    return ClaimLost(
        "The row of this request's idempotency key is not there any more: the view deleted it, or switched to another "
        "schema or database (search_path, USE) and did not switch back. This transaction is rolled back. "
        "Leave the key table to the package, and end the view in the schema in which it began."
    )
