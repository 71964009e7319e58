"""PostgreSQL with the Citus extension: a schema for each tenant, and each schema on one of several nodes.

The key commits with the tenant's other rows on one node, in one phase. Where a view writes to several nodes, Citus
commits in two phases. Each statement here is a "router query": Citus sends it as it is to the node of the schema. Citus
may run an INSERT … SELECT on another node.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from ..protocol.outcomes import ClaimOutcome, ClaimRequest
from .postgresql import PostgreSQLStore
from .queries import values_of
from .server_checks import check_distribution
from .store import Store

if TYPE_CHECKING:
    from django.core.checks import CheckMessage


class CitusStore(PostgreSQLStore):
    def check(self) -> Iterable[CheckMessage]:
        return [*super().check(), *check_distribution(self.connection)]

    def claim(self, wanted: ClaimRequest) -> ClaimOutcome:
        # No messages of our own: the network between the nodes takes longer than that to the first of them.
        return Store.claim(self, wanted)

    def _insert(self, wanted: ClaimRequest) -> int | None:
        # The read takes the advisory lock on the node that has the row, on which all duplicates meet.
        if self._read(wanted) is not None:
            return None
        sql = self._sql
        keys = f"{sql.k['key_hash']}, {sql.k['scope_hash']}"
        row = self._fetch(f"{sql.insert()} ON CONFLICT ({keys}) DO NOTHING RETURNING {sql.k['id']}", values_of(wanted))
        return None if row is None else int(row[0])
