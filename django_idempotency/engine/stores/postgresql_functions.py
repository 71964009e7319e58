"""PostgreSQL with functions for the usual way of a request in atomic mode: claim, replay, completion.

A connection keeps the statements of a function parsed and planned. That is half of what a claim costs the database.
The calls travel with BEGIN and with COMMIT, see `round_trips`. Everything else goes on by the statements of `queries`:

* inside an outer transaction, and with another driver: wherever `round_trips` sends each statement alone;
* where connections are not kept (`CONN_MAX_AGE` 0 and no pool);
* where the functions may not be called: see `functions`.

So the rule is written twice: in SQL, and in `protocol.decision`. One table of states in the tests holds both.

# Note [A function that is gone]
A migration backwards, or a revoked right, may come between two messages of a request. No write may be lost with the
error of the call. The claim is the first statement of its transaction: roll back, and claim again by statements. The
completion comes after the writes, and nothing locks a function until then. So a savepoint stands before the call, in
the same message. The view never runs twice.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from django.db import DatabaseError
from django.db.backends.utils import CursorWrapper

from ..protocol.claims import ClaimRequest
from ..protocol.outcomes import Claimed, ClaimOutcome, Completed, Conflicted, Mismatched, Resource
from ..protocol.snapshots import Snapshot, decode_headers
from . import functions, round_trips
from .functions_checks import check_functions
from .postgresql import IN_ERROR, PostgreSQLStore, sqlstate
from .sealing import unseal_response
from .store import claim_lost

if TYPE_CHECKING:
    from django.core.checks import CheckMessage
    from django.db.backends.base.base import BaseDatabaseWrapper

CLAIM_LOST = "IK001"
"""The SQLSTATE that `idempotency_complete_1` raises."""
SAVEPOINT = "django_idempotency_completion"
LARGE = 64 * 1024
"""Bytes of a body that should not stay in memory with the cursor."""


class _StoredResponse(NamedTuple):
    """A row, as far as a replay needs it."""

    key_hash: int
    scope_hash: int
    headers: str | None
    body: bytes | None


class PostgreSQLFunctionsStore(PostgreSQLStore):
    def __init__(self, alias: str) -> None:
        super().__init__(alias)
        self._seen = functions.Seen(alias)

    def check(self) -> Iterable[CheckMessage]:
        return [*super().check(), *check_functions(self.connection)]

    def _begin_with_claim(
        self, connection: BaseDatabaseWrapper, cursor: CursorWrapper, wanted: ClaimRequest
    ) -> ClaimOutcome | None:
        if wanted.lease is not None or not self._may_call(connection, cursor):
            return super()._begin_with_claim(connection, cursor, wanted)
        try:
            driver = round_trips.open_with(connection, cursor, functions.CLAIM, _claim_params(wanted))
        except DatabaseError as error:
            if sqlstate(error) not in functions.UNCALLABLE:
                raise
            self._seen.note_failure(connection, error)
            round_trips.roll_back(connection)
            return super()._begin_with_claim(connection, cursor, wanted)
        outcome = _outcome_of(driver.fetchone(), wanted)
        if isinstance(outcome, Completed):
            _forget_if_large(connection, outcome.snapshot.body)
        return outcome

    def _may_call(self, connection: BaseDatabaseWrapper, cursor: CursorWrapper) -> bool:
        """Before the transaction begins. A look is a transaction of its own, in one message."""
        if self._seen.there(connection):
            return True
        if not self._seen.look_due(connection):
            return False
        looking = f"{functions.CALLABLE}; COMMIT"
        self._seen.note(connection, round_trips.open_with(connection, cursor, looking, functions.LOOKED_UP))
        return self._seen.there(connection)

    def _completed_at_once(
        self, claimed: Claimed, response: list[Any], ttl: float | None, resource: Resource | None
    ) -> bool:
        connection = self.connection
        if not self._seen.there(connection):
            return False
        cursor = round_trips.cursor_of(connection)
        if not round_trips.may_close(connection, cursor):
            return False
        params = [*claimed.fence, *response, ttl, *(resource or (None, None))]
        _forget_if_large(connection, response[-1])
        try:
            round_trips.close_with(cursor, f"SAVEPOINT {SAVEPOINT}; {functions.COMPLETE}", params)
        except DatabaseError as error:
            if sqlstate(error) == CLAIM_LOST:
                raise claim_lost() from error
            raw: Any = connection.connection
            # An error of the COMMIT has ended the transaction. Then there is no way back to the savepoint.
            if sqlstate(error) not in functions.UNCALLABLE or raw.info.transaction_status != IN_ERROR:
                raise
            self._seen.note_failure(connection, error)
            cursor.execute(f"ROLLBACK TO SAVEPOINT {SAVEPOINT}")
            return False
        return True


def _forget_if_large(connection: BaseDatabaseWrapper, body: bytes | None) -> None:
    if body is not None and len(body) > LARGE:
        round_trips.forget_cursor(connection)


def _claim_params(wanted: ClaimRequest) -> list[Any]:
    of = wanted.identity
    return [of.key_hash, of.scope_hash, of.scope, of.operation, of.key, wanted.fingerprint, wanted.ttl]


def _outcome_of(values: Any, wanted: ClaimRequest) -> ClaimOutcome | None:
    """What the claim's function has decided, as `decide` would say it. None: the caller has to look closer."""
    outcome, row_id, status_code, headers, body, *about = values
    of = wanted.identity
    match outcome:
        case "claimed":
            return Claimed(key_hash=of.key_hash, scope_hash=of.scope_hash, id=row_id, attempt=1)
        case "completed":
            headers, body = unseal_response(_StoredResponse(of.key_hash, of.scope_hash, headers, body))
            snapshot = Snapshot(status_code=status_code, headers=decode_headers(headers), body=body)
            return Completed(snapshot=snapshot, resource=None if about[1] is None else (about[0], about[1]))
        case "mismatched":
            return Mismatched()
        case "conflicted":
            return Conflicted()
        case _:
            return None
