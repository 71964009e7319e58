"""PostgreSQL: an advisory lock says "in flight" without waiting, the unique constraint guards.

Whoever runs the view holds the transaction's advisory lock on `scope_hash`, so nobody ever waits on the row.
"""

from __future__ import annotations

import math
from functools import cached_property
from typing import Any

from django.db import DatabaseError, DataError, OperationalError, transaction
from django.db.backends.utils import CursorWrapper

from ..protocol.claims import ClaimRequest
from ..protocol.outcomes import Claimed, ClaimOutcome, Conflicted
from . import round_trips
from .base import Held, Store, row_gone
from .statements import Row, Status

REPEATABLE = frozenset({"40001", "40P01"})
"""serialization_failure, deadlock_detected"""
GAVE_UP_WAITING = frozenset({"55P03", "57014"})
"""lock_not_available, query_canceled (the project's own statement_timeout)"""
UNDEFINED = frozenset({"42P01", "42703"})
"""undefined_table, undefined_column"""
DIVISION_BY_ZERO = "22012"
IN_ERROR = 3
"""libpq's PQTRANS_INERROR"""


class PostgreSQLStore(Store):
    vendor = "postgresql"
    clock = "clock_timestamp()"
    # A volatile function is compared row by row: without the subselect the last batch of every cleanup reads the
    # index entry of every living key.
    clock_once = "(SELECT clock_timestamp())"
    later = "clock_timestamp() + %s * interval '1 second'"
    skip_locked = "FOR UPDATE SKIP LOCKED"
    lock = "FOR NO KEY UPDATE"
    lock_or_skip = "FOR NO KEY UPDATE SKIP LOCKED"

    def claim(self, claim: ClaimRequest) -> ClaimOutcome:
        outcome = self._claim_in_few_round_trips(claim) or super().claim(claim)
        if isinstance(outcome, Conflicted) and claim.wait:
            return self._wait(claim)
        return outcome

    def _claim_in_few_round_trips(self, claim: ClaimRequest) -> ClaimOutcome | None:
        """The usual outcomes: a claim in one, an answer to a duplicate in two. See `round_trips`.

        None: not here, or an older row may have to be taken over, or was deleted just now. No transaction is open then.
        """
        with self._cursor() as cursor:
            if not round_trips.may_open(self.connection, cursor):
                return None
            round_trips.open_with(self.connection, cursor, self._try_insert_sql, self._insert_params(claim))
            if (inserted := cursor.fetchone()) is not None:
                return Claimed(id=inserted[0], attempt=1)
            round_trips.close_with(cursor, self._read_sql, self._read_params(claim))
            try:
                row = self._row_of(cursor)
            except Held:
                return Conflicted()
        return None if row is None or row.expired else row.judge(claim)

    def _write(self, sql: str, params: list[Any], *, last: bool) -> None:
        with self._cursor() as cursor:
            if not (last and round_trips.may_close(self.connection, cursor)):
                super()._write(sql, params, last=last)
                return
            try:
                # Divides by zero unless one row was written: the COMMIT behind it must not be reached.
                checked = f"WITH written AS ({sql} RETURNING 1) SELECT 1 / (count(*) = 1)::int FROM written"
                round_trips.close_with(cursor, checked, params)
            except DataError as error:
                if _sqlstate(error) != DIVISION_BY_ZERO:
                    raise
                raise row_gone() from error

    def may_repeat(self, error: DatabaseError) -> bool:
        return _sqlstate(error) in REPEATABLE

    def is_unmigrated(self, error: DatabaseError) -> bool:
        return _sqlstate(error) in UNDEFINED

    def is_broken(self) -> bool:
        if super().is_broken():
            return True
        raw: Any = self.connection.connection
        return bool(raw.info.transaction_status == IN_ERROR)

    # NOT EXISTS keeps a replay from drawing a number from the sequence, which would be written to the WAL.
    @cached_property
    def _insert_sql(self) -> str:
        sql = self._sql
        return (
            f"INSERT INTO {sql.table} ({sql.columns}) SELECT %s::bigint, %s::bigint, %s::text, %s::text, %s::varchar, "
            f"%s::bytea, %s::varchar, 1, {self.clock}, {self.later}, {self.later} "
            f"WHERE NOT EXISTS (SELECT 1 FROM {sql.table} WHERE {sql.mine}) AND {{lock}} "
            f"ON CONFLICT ({sql.column['key_hash']}, {sql.column['scope_hash']}) DO NOTHING "
            f"RETURNING {sql.column['id']}"
        )

    @cached_property
    def _try_insert_sql(self) -> str:
        return self._insert_sql.format(lock="pg_try_advisory_xact_lock(%s)")

    @cached_property
    def _wait_insert_sql(self) -> str:
        return self._insert_sql.format(lock="pg_advisory_xact_lock(%s) IS NOT NULL")

    # One row always. The lock is tried only where nobody's result or lease stands in the way; its snapshot may be older
    # than the lock, which is why a lock without a row only means: try to insert again.
    @cached_property
    def _read_sql(self) -> str:
        sql = self._sql
        return (
            f"SELECT CASE WHEN {sql.column['id']} IS NULL OR {sql.column['status']} = '{Status.FAILED.value}' "
            f"OR {sql.lapsed} OR ({sql.is_expired}) THEN pg_try_advisory_xact_lock(%s) END, {sql.row} "
            f"FROM (SELECT 1) AS one LEFT JOIN {sql.table} ON {sql.mine}"
        )

    def _insert(self, claim: ClaimRequest) -> int | None:
        return self._run_insert(self._try_insert_sql, claim)

    def _run_insert(self, statement: str, claim: ClaimRequest) -> int | None:
        with self._cursor() as cursor:
            cursor.execute(statement, self._insert_params(claim))
            row = cursor.fetchone()
        return None if row is None else row[0]

    def _insert_params(self, claim: ClaimRequest) -> list[Any]:
        identity = claim.identity
        return [*self._new_row(claim), identity.key_hash, identity.scope_hash, identity.scope_hash]

    def _read(self, claim: ClaimRequest) -> Row | None:
        with self._cursor() as cursor:
            cursor.execute(self._read_sql, self._read_params(claim))
            return self._row_of(cursor)

    def _read_params(self, claim: ClaimRequest) -> list[Any]:
        identity = claim.identity
        return [identity.scope_hash, identity.key_hash, identity.scope_hash]

    def _row_of(self, cursor: CursorWrapper) -> Row | None:
        locked, *values = cursor.fetchone()
        if locked is False:
            raise Held
        return None if values[0] is None else Row.of(values)

    def _take_over(self, row_id: int, claim: ClaimRequest) -> int | None:
        with self._cursor() as cursor:
            cursor.execute(
                f"{self._sql.take_over} RETURNING {self._sql.column['attempt']}",
                [claim.fingerprint, claim.ttl, claim.lease, row_id],
            )
            row = cursor.fetchone()
        return None if row is None else row[0]

    def _wait(self, claim: ClaimRequest) -> ClaimOutcome:
        """Wait for the one who runs the key, then claim again. The view never sees our lock_timeout."""
        milliseconds = max(1, math.ceil(claim.wait * 1000))
        with self._cursor() as cursor:
            cursor.execute(
                "SELECT current_setting('lock_timeout'), set_config('lock_timeout', %s, true)",
                [f"{milliseconds}ms"],
            )
            previous = cursor.fetchone()[0]
            try:
                row_id = self._run_insert(self._wait_insert_sql, claim)
            except OperationalError as error:
                if _sqlstate(error) not in GAVE_UP_WAITING:
                    raise
                # The transaction is aborted; only the claim was in it.
                transaction.set_rollback(True, using=self.alias)
                return Conflicted()
            cursor.execute("SELECT set_config('lock_timeout', %s, true)", [previous])
        return super().claim(claim) if row_id is None else Claimed(id=row_id, attempt=1)

    @cached_property
    def _purge_sql(self) -> str:
        sql = self._sql
        id_, expires_at = sql.column["id"], sql.column["expires_at"]
        # Not by ctid, which is unique in one partition only: in a partitioned table it would delete living keys. There
        # nothing but a sequence makes ids unique either, so what is deleted must itself have expired. The lower bound
        # steps over what earlier batches deleted, which an old snapshot elsewhere may keep in the index for hours.
        return (
            f"WITH purged AS (DELETE FROM {sql.table} WHERE {id_} = ANY(ARRAY("
            f"SELECT {id_} FROM {sql.table} WHERE {sql.are_expired} "
            f"AND {expires_at} >= COALESCE(%s::timestamptz, '-infinity') "
            f"ORDER BY {expires_at} LIMIT %s {self.skip_locked})) AND {sql.are_expired} "
            f"RETURNING {id_}, {expires_at}), "
            f"steps AS (DELETE FROM {sql.steps} USING purged WHERE {sql.step['key']} = purged.{id_}) "
            f"SELECT count(*), max({expires_at}) FROM purged"
        )

    def purge(self, batch_size: int, not_before: Any = None) -> tuple[int, Any]:
        with self._cursor() as cursor:
            # Until the batch's transaction ends. Two bounds on one column are guessed at 0.5 % of the table, for which
            # the planner may collect and sort all expired rows in every batch instead of walking the index.
            cursor.execute(
                "SELECT set_config('enable_bitmapscan', 'off', true), set_config('enable_seqscan', 'off', true)"
            )
            cursor.execute(self._purge_sql, [not_before, batch_size])
            deleted, last = cursor.fetchone()
        return deleted, last or not_before


def _sqlstate(error: DatabaseError) -> str | None:
    cause = error.__cause__
    # psycopg 3, then psycopg2
    return getattr(cause, "sqlstate", None) or getattr(cause, "pgcode", None)
