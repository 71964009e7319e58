"""The queries of leased mode: fence, lease, steps, and what an operator decides. Each is made once for each store."""

from __future__ import annotations

from functools import cached_property

from ..protocol.decision import Status
from .conditions import Conditions

FAILED = Status.FAILED
DECIDED = "A decision ended this attempt."


class LeaseQueries(Conditions):
    """SQL for a committed claim, its lease and its steps."""

    # --- the claim

    @cached_property
    def lock_own_claim(self) -> str:
        """Lock the claimed row, if it still belongs to this attempt. Parameters: the fence's."""
        return f"SELECT {self.k['id']} FROM {self.table} WHERE {self.fence} {self.dialect.lock}"

    @cached_property
    def touch(self) -> str:
        """Write a new version of the claimed row that changes nothing. Parameters: the fence's."""
        return f"UPDATE {self.table} SET {self.k['status']} = {self.k['status']} WHERE {self.fence}"

    @cached_property
    def renew(self) -> str:
        """Start the lease again. Parameters: lease, the fence's."""
        return f"UPDATE {self.table} SET {self.k['locked_until']} = {self.dialect.later} WHERE {self.fence}"

    @cached_property
    def refer(self) -> str:
        """Keep what the operation is about. Parameters: type, id, the fence's."""
        return f"UPDATE {self.table} SET {self.set_resource} WHERE {self.fence}"

    @cached_property
    def fail(self) -> str:
        """End the attempt without a result. Parameters: ttl, error, the fence's."""
        k = self.k
        return (
            f"UPDATE {self.table} SET {self.status_is(FAILED)}, {k['locked_until']} = NULL, "
            f"{k['updated_at']} = {self.dialect.clock}, {k['expires_at']} = {self.dialect.later}, "
            f"{k['last_error']} = %s WHERE {self.fence}"
        )

    @cached_property
    def timeliness(self) -> str:
        """Whether a row has expired, and whether its worker has left it. Parameters: key_hash, scope_hash."""
        return f"SELECT ({self.expired}), ({self.abandoned}) FROM {self.table} WHERE {self.same_hashes}"

    # --- steps

    @cached_property
    def read_steps(self) -> str:
        """All steps of the own claim. One row of NULLs: no steps. No row: claim lost. Parameters: the fence's."""
        s = self.s
        return (
            f"SELECT {s['name']}, {s['finished_at']}, {s['result']} "
            f"FROM (SELECT {self.k['id']} AS own_id FROM {self.table} WHERE {self.fence}) AS own "
            f"LEFT JOIN {self.steps} ON {s['key']} = own_id"
        )

    @cached_property
    def read_doubts(self) -> str:
        """Names and kinds of a key's steps in doubt. Parameter: id of the key."""
        s = self.s
        return (
            f"SELECT {s['name']}, {s['kind']} FROM {self.steps} WHERE {s['key']} = %s AND {self.unfinished} "
            f"{self.dialect.share}"
        )

    @cached_property
    def start_step(self) -> str:
        """Lock the claimed row, and record that a step is about to be run. Parameters: name, kind, the fence's."""
        k, s = self.k, self.s
        return (
            f"INSERT INTO {self.steps} ({s['key']}, {s['name']}, {s['kind']}, {s['attempt']}, {s['started_at']}) "
            f"SELECT {k['id']}, %s, %s, {k['attempt']}, {self.dialect.clock} "
            f"FROM {self.table} WHERE {self.fence} {self.dialect.lock}"
        )

    @cached_property
    def keep_fetched(self) -> str:
        """Lock the claimed row, and record a read that is done. Parameters: name, kind, result, the fence's."""
        k, s, clock = self.k, self.s, self.dialect.clock
        names = ("key", "name", "kind", "result", "attempt", "started_at", "finished_at")
        return (
            f"INSERT INTO {self.steps} ({', '.join(s[name] for name in names)}) "
            f"SELECT {k['id']}, %s, %s, %s, {k['attempt']}, {clock}, {clock} "
            f"FROM {self.table} WHERE {self.fence} {self.dialect.lock}"
        )

    @cached_property
    def find_step(self) -> str:
        """Whether a key has steps. Parameter: id of the key."""
        return f"SELECT 1 FROM {self.steps} WHERE {self.s['key']} = %s LIMIT 1 {self.dialect.share}"

    @cached_property
    def restart_step(self) -> str:
        """Record that a call in doubt is about to be made again. Parameters: attempt, those of `own_step`.

        The time of the first start and the error stay: a person may have to look the first call up.
        """
        return f"UPDATE {self.steps} SET {self.s['attempt']} = %s WHERE {self.own_step}"

    @cached_property
    def finish_step(self) -> str:
        """Record the result of a step that was started. Parameters: result, those of `own_step`."""
        return f"UPDATE {self.steps} SET {self.finished} WHERE {self.own_step}"

    @cached_property
    def finish_call(self) -> str:
        """The same in a statement that commits by itself."""
        return self.finish_step

    @cached_property
    def note_error(self) -> str:
        """Record why a call is in doubt. Parameters: error, those of `own_step`."""
        return f"UPDATE {self.steps} SET {self.s['error']} = %s WHERE {self.own_step}"

    @cached_property
    def own_step(self) -> str:
        """Lock the claimed row, and find its step without a result. Parameters: the fence's, name of the step.

        The subselect runs once, and before the first step can be found. So no step is changed without the lock.
        """
        return f"{self.s['key']} = ({self.lock_own_claim}) AND {self.unfinished_step}"

    @cached_property
    def finished(self) -> str:
        """What a step has when it is finished. Parameter: result."""
        s = self.s
        return f"{s['result']} = %s, {s['finished_at']} = {self.dialect.clock}"

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
            f"SELECT {k['key_hash']}, {k['scope_hash']}, {k['decisions']} FROM {self.table} WHERE {k['id']} = %s "
            f"AND {k['attempt']} = %s AND ({self.status_is(FAILED)} OR ({self.abandoned})) {self.dialect.lock}"
        )

    @cached_property
    def set_failed(self) -> str:
        """Take a locked row away from its worker. Parameters: decisions, those of `same_row`."""
        return f"{self._decided} WHERE {self.same_row}"

    @cached_property
    def _explained(self) -> str:
        """Every failed row has an error: the partial index of failed rows has no other condition."""
        return f"{self.k['last_error']} = COALESCE({self.k['last_error']}, '{DECIDED}')"

    @cached_property
    def fail_harmless(self) -> str:
        """Fail an abandoned key that has called nothing. Parameters: decisions, those of `same_attempt`."""
        return (
            f"{self._decided} "
            f"WHERE {self.same_attempt} AND {self.abandoned} AND NOT ({self.unleased}) AND NOT {self.has_effects}"
        )

    @cached_property
    def _decided(self) -> str:
        """End an attempt by a decision. Parameter: decisions."""
        k = self.k
        return (
            f"UPDATE {self.table} SET {self.status_is(FAILED)}, {k['locked_until']} = NULL, {self._explained}, "
            f"{k['updated_at']} = {self.dialect.clock}, {k['decisions']} = %s"
        )

    @cached_property
    def keep_longer(self) -> str:
        """Keep a locked row for at least this time from now on. Parameters: ttl, those of `same_row`, ttl."""
        expires_at, later = self.k["expires_at"], self.dialect.later
        return f"UPDATE {self.table} SET {expires_at} = {later} WHERE {self.same_row} AND {expires_at} < {later}"

    @cached_property
    def record_result(self) -> str:
        """Record the result of a step of a locked row. Parameters: result, id of the key, name."""
        return f"UPDATE {self.steps} SET {self.finished} WHERE {self.s['key']} = %s AND {self.unfinished_step}"

    @cached_property
    def delete_doubts(self) -> str:
        """Delete the calls in doubt of a key. Parameter: id of the key."""
        return f"{self.delete_steps} AND {self.unfinished}"

    @cached_property
    def close(self) -> str:
        """Complete a locked row. Parameters: status code, headers, body, those of `same_row`."""
        return f"{self.set_completed} WHERE {self.same_row}"
