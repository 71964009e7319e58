"""The queries of a claim: from the first look at a key to its result. Each is made once for each store.

All databases share them. What a database does in its own way is in the module of its store.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

from ..protocol.claims import ClaimRequest
from ..protocol.decision import Status, StoredKey
from .conditions import Conditions
from .sealing import unseal_response

IN_PROGRESS, COMPLETED, FAILED = Status.IN_PROGRESS, Status.COMPLETED, Status.FAILED


class ClaimQueries(Conditions):
    """SQL for claiming a key and for keeping or giving up its claim."""

    @cached_property
    def new_row(self) -> str:
        """The columns of a new row. `attempt`, `created_at` and their neighbours come from the INSERT's own text."""
        given = ("key_hash", "scope_hash", "scope", "operation", "key", "fingerprint", "status", "policy")
        made = ("attempt", "created_at", "updated_at", "expires_at", "locked_until")
        return ", ".join(self.k[name] for name in (*given, *made))

    @cached_property
    def stored_key(self) -> str:
        """The columns that `as_stored_key` reads."""
        before = ("id", "scope", "operation", "key", "fingerprint", "status", "attempt")
        judged = (f"({self.expired})", f"({self.lapsed})", f"({self.unleased})", self.lease_left)
        after = ("status_code", "headers", "body", "resource_type", "resource_id")
        return ", ".join((*(self.k[name] for name in before), *judged, *(self.k[name] for name in after)))

    @cached_property
    def look(self) -> str:
        """Read the row of an identity without locking it."""
        return f"SELECT {self.stored_key} FROM {self.table} WHERE {self.same_hashes}"

    @cached_property
    def take_over(self) -> str:
        """Claim an expired row as a new key. Parameters: fingerprint, policy, ttl, lease, those of `same_row`."""
        k = self.k
        return (
            f"UPDATE {self.table} {self.dialect.by_id} SET {k['fingerprint']} = %s, {k['status_code']} = NULL, "
            f"{k['headers']} = NULL, {k['body']} = NULL, {k['completed_at']} = NULL, "
            f"{k['resource_type']} = NULL, {k['resource_id']} = NULL, {k['decisions']} = NULL, "
            f"{k['created_at']} = {self.dialect.clock}, {self._next_attempt} WHERE {self.same_row} AND {self.expired}"
        )

    @cached_property
    def lock_for_resuming(self) -> str:
        """Lock a failed or abandoned row, if it is as the caller has read it. Parameters: as `same_attempt`, status."""
        return (
            f"SELECT {self.k['id']} FROM {self.table} WHERE {self.same_attempt} AND {self.k['status']} = %s "
            f"AND ({self.status_is(FAILED)} OR {self.lapsed}) {self.dialect.lock_or_skip}"
        )

    @cached_property
    def resume(self) -> str:
        """Begin the next attempt of a locked row. Parameters: policy, ttl, lease, those of `same_row`."""
        return f"UPDATE {self.table} SET {self._next_attempt} WHERE {self.same_row}"

    @cached_property
    def _next_attempt(self) -> str:
        k, later = self.k, self.dialect.later
        return (
            f"{self.status_is(IN_PROGRESS)}, {k['attempt']} = {k['attempt']} + 1, {k['last_error']} = NULL, "
            f"{k['updated_at']} = {self.dialect.clock}, {k['policy']} = %s, "
            f"{k['expires_at']} = {later}, {k['locked_until']} = {later}"
        )

    @cached_property
    def read_attempt(self) -> str:
        """The attempt of a row, where an UPDATE cannot return it. Parameters: those of `same_row`."""
        return f"SELECT {self.k['attempt']} FROM {self.table} WHERE {self.same_row}"

    def complete(self, *, until: bool, about: bool) -> str:
        """Store the response of the own claim. Parameters: status code, headers, body, ttl, type and id, the fence's.

        until: keep it for another time: with the parameter ttl.
        about: keep what it is about: with the parameters type and id.
        """
        more = f", {self.k['expires_at']} = {self.dialect.later}" if until else ""
        if about:
            more += f", {self.set_resource}"
        return f"{self.set_completed}{more} WHERE {self.fence}"

    @cached_property
    def release(self) -> str:
        """Delete the row of the own claim. Parameters: the fence's."""
        return f"DELETE FROM {self.table} WHERE {self.fence}"

    @cached_property
    def find_unleased(self) -> str:
        """Whether the row of an identity is a committed claim without a lease. Parameters: key_hash, scope_hash."""
        return f"SELECT 1 FROM {self.table} WHERE {self.same_hashes} AND {self._not_noted}"

    @cached_property
    def find_expired_unleased(self) -> str:
        """Hashes and ids of such rows whose `ttl` is over, oldest first. Parameter: how many."""
        k = self.k
        return (
            f"SELECT {k['key_hash']}, {k['scope_hash']}, {k['id']} FROM {self.table} "
            f"WHERE {k['expires_at']} <= {self.dialect.clock_once} AND {self._not_noted} "
            f"ORDER BY {k['expires_at']} LIMIT %s"
        )

    @cached_property
    def note_unleased(self) -> str:
        """Put such a row where `stuck` finds it. Parameters: error, key_hash, scope_hash."""
        k = self.k
        return (
            f"UPDATE {self.table} SET {k['locked_until']} = {self.dialect.no_lease}, {k['last_error']} = %s, "
            f"{k['updated_at']} = {self.dialect.clock} "
            f"WHERE {self.same_hashes} AND {self._not_noted}"
        )

    @cached_property
    def _not_noted(self) -> str:
        return f"{self.status_is(IN_PROGRESS)} AND {self.k['locked_until']} IS NULL"

    @cached_property
    def count_expired(self) -> str:
        """How many rows a cleanup would delete."""
        return f"SELECT count(*) FROM {self.table} WHERE {self.expired}"


def as_stored_key(values: Any) -> StoredKey:
    """A row of `ClaimQueries.stored_key`. Drivers return bytes and truth values in several types."""
    id_, scope, operation, key, fingerprint, status, attempt, expired, lapsed, unleased, *rest = values
    lease_left, status_code, headers, body, *resource = rest
    return StoredKey(
        id=id_,
        scope=scope,
        operation=operation,
        key=key,
        fingerprint=None if fingerprint is None else bytes(fingerprint),
        status=Status(status),
        attempt=attempt,
        expired=bool(expired),
        lapsed=bool(lapsed),
        unleased=bool(unleased),
        lease_left=float(lease_left or 0),
        status_code=status_code,
        headers=headers,
        body=None if body is None else bytes(body),
        resource=None if resource[1] is None else (resource[0], resource[1]),
        unsealed=unseal_response,
    )


def as_new_row(wanted: ClaimRequest) -> list[Any]:
    """The parameters of `ClaimQueries.new_row`."""
    identity = wanted.identity
    return [
        identity.key_hash,
        identity.scope_hash,
        identity.scope,
        identity.operation,
        identity.key,
        wanted.fingerprint,
        IN_PROGRESS.value,
        wanted.policy,
        wanted.ttl,
        wanted.lease,
    ]
