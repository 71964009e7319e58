"""The leased half of the store for Citus: a transaction of plain statements, where others lock and write in one.

Citus refuses to lock a row in a subselect or in an INSERT … SELECT.
"""

from __future__ import annotations

from functools import cached_property

from django.db import transaction

from ...models import IdempotencyStep
from ..protocol.outcomes import Claimed
from .lease_queries import LeaseQueries
from .leases import lease_lost
from .postgresql import PostgreSQLStore
from .sealing import seal

Kind = IdempotencyStep.Kind


class CitusLeaseQueries(LeaseQueries):
    """Each changes a step of a row that the transaction has locked. Parameters end with: id of the key, name."""

    @cached_property
    def insert_step(self) -> str:
        """Record that a step is about to be run. Parameters: kind, attempt, id of the key, name."""
        columns = ", ".join(self.s[name] for name in ("kind", "attempt", "key", "name", "started_at"))
        return f"INSERT INTO {self.steps} ({columns}) VALUES (%s, %s, %s, %s, {self.dialect.clock})"

    @cached_property
    def insert_fetched(self) -> str:
        """Record a read that is done. Parameters: kind, result, attempt, id of the key, name."""
        names = ("kind", "result", "attempt", "key", "name", "started_at", "finished_at")
        columns, clock = ", ".join(self.s[name] for name in names), self.dialect.clock
        return f"INSERT INTO {self.steps} ({columns}) VALUES (%s, %s, %s, %s, %s, {clock}, {clock})"

    @cached_property
    def own_step(self) -> str:
        return f"{self.s['key']} = %s AND {self.unfinished_step}"


class CitusLeases(PostgreSQLStore):
    def start_call(self, claimed: Claimed, name: str, *, again: bool) -> None:
        with transaction.atomic(using=self.alias):
            # As on PostgreSQL, a new version of the row stops a takeover with an older snapshot.
            self._execute_or(lease_lost, self._lease_sql.touch, claimed.fence)
            if again:
                self._execute_or(lease_lost, self._lease_sql.restart_step, [claimed.attempt, claimed.id, name])
            else:
                self._insert_step(claimed, name, Kind.CALL)

    def finish_call(self, claimed: Claimed, name: str, result: str | None) -> None:
        with transaction.atomic(using=self.alias):
            self.fence(claimed)
            # No row: the call was finished by the first of two tries.
            self._execute(self._lease_sql.finish_step, [seal(claimed, "result", result, name), claimed.id, name])

    def keep_fetched(self, claimed: Claimed, name: str, result: str) -> None:
        kept = [Kind.FETCH.value, seal(claimed, "result", result, name)]
        with transaction.atomic(using=self.alias):
            self.fence(claimed)
            self._execute(self._lease_sql.insert_fetched, [*kept, claimed.attempt, claimed.id, name])

    def note_error(self, claimed: Claimed, name: str, error: str) -> None:
        with transaction.atomic(using=self.alias):
            self.fence(claimed)
            self._execute(self._lease_sql.note_error, [seal(claimed, "error", error, name), claimed.id, name])

    def start_write(self, claimed: Claimed, name: str) -> None:
        self.fence(claimed)
        self._insert_step(claimed, name, Kind.WRITE)

    def finish_write(self, claimed: Claimed, name: str, result: str) -> None:
        self.fence(claimed)
        params = [seal(claimed, "result", result, name), claimed.id, name]
        self._end_with(lease_lost, self._lease_sql.finish_step, params)

    def _insert_step(self, claimed: Claimed, name: str, kind: Kind) -> None:
        self._execute(self._lease_sql.insert_step, [kind.value, claimed.attempt, claimed.id, name])

    @cached_property
    def _lease_sql(self) -> CitusLeaseQueries:  # type: ignore[override]
        return CitusLeaseQueries(self.dialect, self._quote)
