"""The queries of leased mode that PostgreSQL answers in one statement, where others need a transaction of several."""

from __future__ import annotations

from functools import cached_property

from ...models import IdempotencyStep
from .lease_queries import LeaseQueries


class PostgreSQLLeaseQueries(LeaseQueries):
    """The start of a call writes a new version of the claimed row, and the step, in one statement.

    Under REPEATABLE READ, a takeover with an older snapshot fails on that version. Without it, the takeover would not
    see the call that is in doubt from now on. A lock alone leaves no version.
    """

    @cached_property
    def start_call(self) -> str:
        """Record that a call is about to be made. Parameters: the fence's, name."""
        s = self.s
        return (
            f"{self._own} "
            f"INSERT INTO {self.steps} ({s['key']}, {s['name']}, {s['kind']}, {s['attempt']}, {s['started_at']}) "
            f"SELECT own_id, %s, '{IdempotencyStep.Kind.CALL.value}', own_attempt, {self.dialect.clock} FROM own"
        )

    @cached_property
    def restart_call(self) -> str:
        """Record that a call in doubt is about to be made again. Parameters: the fence's, name."""
        s = self.s
        return (
            f"{self._own} "
            f"UPDATE {self.steps} SET {s['attempt']} = own_attempt "
            f"FROM own WHERE {s['key']} = own_id AND {self.unfinished_step}"
        )

    @cached_property
    def _own(self) -> str:
        """The claimed row with its new version. Parameters: the fence's."""
        return f"WITH own AS ({self.touch} RETURNING {self.k['id']} AS own_id, {self.k['attempt']} AS own_attempt)"
