"""PostgreSQL's cleanup: batches by the index on `expires_at`, deleted by address where an address is enough."""

from __future__ import annotations

from functools import cached_property
from typing import Any, ClassVar

from .store import Store

# Note [Deleting by address]
#
# A row's address, its ctid, is found without an index. That makes a batch a sixth cheaper. It is safe in one plain
# table and in one statement: the rows are chosen and deleted under one snapshot. While that snapshot is in use, no
# VACUUM removes a version that it sees, so no other row can be at such an address.
#
# * A row that another transaction has changed after the snapshot has moved. Its lock is on the new version, which the
#   snapshot does not see. So the row is not deleted. A second statement, with a snapshot of its own, deletes it by id.
# * In partitions, child tables and Citus's shards an address occurs more than once. There, rows are deleted by id.
# * Each row that is deleted must itself have expired, by id and by address. So even a table that becomes partitioned
#   between two statements loses no living key.
IS_ONE_HEAP = (
    "EXISTS (SELECT 1 FROM pg_catalog.pg_class AS r JOIN pg_catalog.pg_am AS a ON a.oid = r.relam "
    "WHERE r.oid = to_regclass(%s) AND r.relkind = 'r' AND NOT r.relhassubclass AND a.amname = 'heap')"
)


class PostgreSQLCleanup(Store):
    has_addresses: ClassVar[bool] = True
    """Whether a plain table's rows have an address of their own. See Note [Deleting by address]."""

    def note_expired_unleased(self, error: str, limit: int) -> None:
        self._walk_indexes()
        super().note_expired_unleased(error, limit)

    def purge(self, batch_size: int, not_before: Any = None) -> tuple[int, Any]:
        is_one_heap = self._walk_indexes()
        if not (is_one_heap and self.has_addresses):
            return self._purge_by_id(batch_size, not_before)
        found, deleted, last = self._fetch(self._purge_by_address_sql, [not_before, batch_size])
        if deleted < found:
            moved, last_moved = self._purge_by_id(found - deleted, not_before)
            return deleted + moved, max(filter(None, (last, last_moved)), default=None)
        return deleted, last or not_before

    def _purge_by_id(self, batch_size: int, not_before: Any) -> tuple[int, Any]:
        deleted, last = self._fetch(self._purge_by_id_sql, [not_before, batch_size])
        return deleted, last or not_before

    @cached_property
    def _purge_by_address_sql(self) -> str:
        """Delete expired rows and their steps. Parameters: not before, how many.

        Returns how many rows were found, how many were deleted, and the last time. See Note [Deleting by address].
        """
        sql = self._sql
        id_, expires_at = sql.k["id"], sql.k["expires_at"]
        return (
            f"WITH found AS MATERIALIZED (SELECT ARRAY({self._expired_sql('ctid')}) AS addresses), "
            f"{self._purged_sql('ctid', '(SELECT addresses FROM found)::tid[]')}, "
            f"steps AS (DELETE FROM {sql.steps} WHERE {sql.s['key']} = ANY(ARRAY(SELECT {id_} FROM purged))) "
            f"SELECT (SELECT cardinality(addresses) FROM found), count(*), max({expires_at}) FROM purged"
        )

    @cached_property
    def _purge_by_id_sql(self) -> str:
        """Delete expired rows and their steps. Parameters: not before, how many. Returns how many, and the last time.

        In a partitioned table only a sequence makes ids unique. So each row that is deleted must itself have expired.
        """
        sql = self._sql
        id_, expires_at = sql.k["id"], sql.k["expires_at"]
        return (
            f"WITH {self._purged_sql(id_, f'ARRAY({self._expired_sql(id_)})')}, "
            f"steps AS (DELETE FROM {sql.steps} USING purged WHERE {sql.s['key']} = purged.{id_}) "
            f"SELECT count(*), max({expires_at}) FROM purged"
        )

    def _purged_sql(self, column: str, found: str) -> str:
        """`purged AS …`: delete the rows whose column is in the array, if they have expired themselves."""
        sql = self._sql
        return (
            f"purged AS (DELETE FROM {sql.table} WHERE {column} = ANY({found}) "
            f"AND {sql.expired} RETURNING {sql.k['id']}, {sql.k['expires_at']})"
        )

    def _expired_sql(self, column: str) -> str:
        """Lock expired rows that no other transaction holds, oldest first. Parameters: not before, how many.

        The lower bound steps over what earlier batches deleted: an old snapshot elsewhere may keep such entries in the
        index for hours.
        """
        sql = self._sql
        expires_at = sql.k["expires_at"]
        return (
            f"SELECT {column} FROM {sql.table} WHERE {sql.expired} "
            f"AND {expires_at} >= COALESCE(%s::timestamptz, '-infinity') "
            f"ORDER BY {expires_at} LIMIT %s {self.dialect.skip_locked}"
        )

    def _walk_indexes(self) -> bool:
        """Until the transaction ends. PostgreSQL guesses that two bounds on one column leave 0.5 % of the table.

        Then the planner may collect and sort all expired rows in every batch, and not walk the index.

        Returns whether the key table is one plain table.
        """
        sql = (
            "SELECT set_config('enable_bitmapscan', 'off', true), set_config('enable_seqscan', 'off', true), "
            f"{IS_ONE_HEAP}"
        )
        return bool(self._fetch(sql, [self._sql.table])[2])
