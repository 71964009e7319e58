"""PostgreSQL with the Citus extension: a schema for each tenant, and each schema on one of several nodes.

The key commits with the tenant's other rows on one node, in one phase. Where a view writes to several nodes, Citus
commits in two phases. Each statement here is a "router query": Citus sends it as it is to the node of the schema. Citus
may run an INSERT … SELECT on another node, and refuses a volatile clock in an UPDATE.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from django.db import transaction

from ..protocol.claims import ClaimRequest
from ..protocol.digests import Identity
from ..protocol.outcomes import ClaimOutcome
from .citus_checks import check_distribution
from .postgresql import PostgreSQLStore
from .queries import as_new_row
from .store import new_claim, row_of

if TYPE_CHECKING:
    from django.core.checks import CheckMessage
    from django.db.backends.base.base import BaseDatabaseWrapper

CLOCK = "statement_timestamp()"
LATER = f"{CLOCK} + %s * interval '1 second'"


def is_citus(connection: BaseDatabaseWrapper) -> bool:
    """Whether the database has the extension. Asked beside Django: a project's `assertNumQueries` does not count it."""
    connection.ensure_connection()
    raw: Any = connection.connection
    with connection.wrap_database_errors, raw.cursor() as cursor:
        cursor.execute("SELECT 1 FROM pg_catalog.pg_extension WHERE extname = 'citus'")
        return cursor.fetchone() is not None


class CitusStore(PostgreSQLStore):
    dialect = replace(PostgreSQLStore.dialect, clock=CLOCK, clock_once=CLOCK, later=LATER)
    has_addresses = False  # each shard has its own

    def check(self) -> Iterable[CheckMessage]:
        return [*super().check(), *check_distribution(self.connection)]

    def claim_and_commit(self, wanted: ClaimRequest) -> ClaimOutcome:
        with transaction.atomic(using=self.alias):  # the advisory lock must outlive the read
            return self._claim_in_rounds(wanted)

    def _claim_in_few_round_trips(self, wanted: ClaimRequest) -> None:
        """Not here: the network between the nodes takes longer than that to the first of them."""

    def _claim_once(self, wanted: ClaimRequest) -> ClaimOutcome | None:
        # The read takes the advisory lock on the node that has the row, on which all duplicates meet.
        stored = self._read(wanted)
        if stored is not None:
            return self._answer(stored, wanted)
        row_id = self._insert(wanted)
        return None if row_id is None else new_claim(row_of(row_id, wanted), attempt=1)

    @cached_property
    def _insert_sql(self) -> str:
        """Insert a new row, unless the key is stored already."""
        sql = self._sql
        return (
            f"INSERT INTO {sql.table} ({sql.new_row}) "
            f"VALUES (%s, %s, %s, %s, %s, %s, %s, %s, 1, {CLOCK}, {CLOCK}, {LATER}, {LATER}) "
            f"ON CONFLICT ({sql.k['key_hash']}, {sql.k['scope_hash']}) DO NOTHING RETURNING {sql.k['id']}"
        )

    def _insert_params(self, wanted: ClaimRequest) -> list[Any]:
        return as_new_row(wanted)

    def _set_lock_timeout(self, value: str) -> str:
        """On all nodes that the transaction reaches: only SET LOCAL is sent to them, and only if that is asked for."""
        previous = super()._set_lock_timeout(value)
        propagated = self._fetch("SELECT current_setting('citus.propagate_set_commands')", [])[0]
        for name, wanted in (
            ("citus.propagate_set_commands", "local"),
            ("lock_timeout", value),
            ("citus.propagate_set_commands", propagated),
        ):
            self._execute(f"SET LOCAL {name} TO '{wanted}'", [])
        return previous

    def _wait_for_lock(self, identity: Identity) -> None:
        # It returns a column of the table: else the planner drops the table, and the lock is taken on another node.
        sql = self._sql
        self._fetch(
            f"SELECT pg_advisory_xact_lock(%s), {sql.k['id']} "
            f"FROM (SELECT 1) AS one LEFT JOIN {sql.table} ON {sql.same_hashes}",
            [identity.scope_hash, identity.key_hash, identity.scope_hash],
        )
