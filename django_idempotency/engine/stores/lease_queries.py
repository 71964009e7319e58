"""The queries of leased mode: fence, lease, steps, and what an operator decides. Each is made once for each store."""

from __future__ import annotations

from functools import cached_property

from ..protocol.decision import Status
from .conditions import Conditions

IN_PROGRESS, FAILED = Status.IN_PROGRESS, Status.FAILED


class LeaseQueries(Conditions):
    """SQL for a committed claim, its lease and its steps."""

    # --- the claim

    @cached_property
    def lock_own_claim(self) -> str:
        """Lock the claimed row, if it still belongs to this attempt. Parameters: id, attempt."""
        return f"SELECT {self.k['id']} FROM {self.table} WHERE {self.fence} {self.dialect.lock}"

    @cached_property
    def touch(self) -> str:
        """Write a new version of the claimed row that changes nothing. Parameters: id, attempt."""
        return f"UPDATE {self.table} SET {self.k['status']} = {self.k['status']} WHERE {self.fence}"

    @cached_property
    def renew(self) -> str:
        """Start the lease again. Parameters: lease, id, attempt."""
        return f"UPDATE {self.table} SET {self.k['locked_until']} = {self.dialect.later} WHERE {self.fence}"

    @cached_property
    def fail(self) -> str:
        """End the attempt without a result. Parameters: ttl, error, id, attempt."""
        return f"{self._set_failed}, {self.k['last_error']} = %s WHERE {self.fence}"

    @cached_property
    def timeliness(self) -> str:
        """Whether a row has expired, and whether its lease is over. Parameter: id."""
        return f"SELECT ({self.expired}), ({self.lapsed}) FROM {self.table} WHERE {self.k['id']} = %s"

    # --- steps

    @cached_property
    def read_steps(self) -> str:
        """All steps of a key. Parameter: id of the key."""
        s = self.s
        return f"SELECT {s['name']}, {s['finished_at']}, {s['result']} FROM {self.steps} WHERE {s['key']} = %s"

    @cached_property
    def read_doubts(self) -> str:
        """The names of a key's calls in doubt, oldest first. Parameter: id of the key."""
        s = self.s
        return (
            f"SELECT {s['name']} FROM {self.steps} WHERE {s['key']} = %s AND {self.unfinished} "
            f"ORDER BY {s['id']} {self.dialect.share}"
        )

    @cached_property
    def add_started_step(self) -> str:
        """Record that a call is about to be made. Parameters: id of the key, name, kind, attempt, result."""
        return self._add_step("NULL")

    @cached_property
    def add_finished_step(self) -> str:
        """Record a local write and its result. Parameters: id of the key, name, kind, attempt, result."""
        return self._add_step(self.dialect.clock)

    def _add_step(self, finished_at: str) -> str:
        s = self.s
        return (
            f"INSERT INTO {self.steps} ({s['key']}, {s['name']}, {s['kind']}, {s['attempt']}, {s['result']}, "
            f"{s['started_at']}, {s['finished_at']}) VALUES (%s, %s, %s, %s, %s, {self.dialect.clock}, {finished_at})"
        )

    @cached_property
    def restart_step(self) -> str:
        """Record that a call in doubt is about to be made again. Parameters: attempt, id of the key, name."""
        s, clock = self.s, self.dialect.clock
        return (
            f"UPDATE {self.steps} SET {s['attempt']} = %s, {s['started_at']} = {clock}, {s['error']} = NULL "
            f"WHERE {self.unfinished_step}"
        )

    @cached_property
    def finish_step(self) -> str:
        """Record the result of a call that was started. Parameters: result, id of the key, name."""
        s, clock = self.s, self.dialect.clock
        return (
            f"UPDATE {self.steps} SET {s['result']} = %s, {s['finished_at']} = {clock}, {s['error']} = NULL "
            f"WHERE {self.unfinished_step}"
        )

    @cached_property
    def note_error(self) -> str:
        """Record why a call is in doubt. Parameters: error, id of the key, name."""
        return f"UPDATE {self.steps} SET {self.s['error']} = %s WHERE {self.unfinished_step}"

    @cached_property
    def delete_steps(self) -> str:
        """Delete all steps of a key. Parameter: id of the key."""
        return f"DELETE FROM {self.steps} WHERE {self.s['key']} = %s"

    # --- what an operator decides

    @cached_property
    def lock_resolvable(self) -> str:
        """Lock a failed or abandoned row, if it is at the attempt that the operator saw. Parameters: id, attempt."""
        k = self.k
        return (
            f"SELECT {k['key_hash']}, {k['scope_hash']} FROM {self.table} "
            f"WHERE {self.same_attempt} AND ({self.status_is(FAILED)} "
            f"OR ({self.status_is(IN_PROGRESS)} AND {self.lapsed})) {self.dialect.lock}"
        )

    @cached_property
    def set_failed(self) -> str:
        """Take a locked row away from its worker. Parameters: ttl, id."""
        return f"{self._set_failed} WHERE {self.k['id']} = %s"

    @cached_property
    def delete_doubts(self) -> str:
        """Delete the calls in doubt of a key. Parameter: id of the key."""
        return f"{self.delete_steps} AND {self.unfinished}"

    @cached_property
    def close(self) -> str:
        """Complete a locked row. Parameters: status code, headers, body, id."""
        return f"{self.set_completed} WHERE {self.k['id']} = %s"

    @cached_property
    def _set_failed(self) -> str:
        return (
            f"UPDATE {self.table} SET {self.status_is(FAILED)}, {self.k['locked_until']} = NULL, "
            f"{self.k['expires_at']} = {self.dialect.later}"
        )
