"""The statements of a claim: from the first look at a key to its result. Each is made once for each store.

All databases share them. The INSERT is in the module of each store. All parameters have names: see `values_of`, and
`Claimed.values`.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cache, cached_property
from socket import gethostname
from typing import TYPE_CHECKING, Any

from django.db import connections

from ...exceptions import IdempotencyConfigurationError
from ...models import IdempotencyKey, IdempotencyStep
from ..protocol.decision import Status, StoredKey
from .sealing import unseal_response
from .states import EXPIRED, LAPSED, UNLEASED, as_sql

if TYPE_CHECKING:
    from ..protocol.outcomes import Claimed, ClaimRequest

Values = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """How one database spells the clock, the locks and the hints of the package's queries.

    clock: the database's time at the beginning of the statement: neither that of the transaction, nor the application's
        clock. An index can be searched by it.
    later: the clock plus a parameter in seconds.
    seconds_until: how many seconds are left until a time; `{}` is the column of that time.
    lock_at_once: makes a SELECT lock its row against other writers. If another transaction holds the row, the SELECT
        fails or returns nothing, and does not wait. Empty where a transaction locks the whole database.
    skip_locked: makes a cleanup pass over rows that another transaction holds.
    by_expiry: makes a cleanup find expired rows by the index on `expires_at`, where the optimizer could read, and lock,
        the whole table.
    delete_by_ids: deletes the rows of {table} whose {column} is in the JSON list %(ids)s. Where an id can be of several
        rows, only those that are {still} to be deleted.
    """

    clock: str
    later: str
    seconds_until: str
    delete_by_ids: str
    lock_at_once: str = ""
    skip_locked: str = ""
    by_expiry: str = ""


class Queries:
    """SQL for claiming a key, and for keeping or giving up its claim. `k` are the columns of the keys, quoted."""

    def __init__(self, dialect: Dialect, alias: str) -> None:
        quote = connections[alias].ops.quote_name
        self.dialect = dialect
        self.table, self.steps = quote(IdempotencyKey._meta.db_table), quote(IdempotencyStep._meta.db_table)
        self.k = {field.name: quote(str(field.column)) for field in IdempotencyKey._meta.concrete_fields}
        self.step_key = quote(str(IdempotencyStep._meta.get_field("key").column))
        self.expired, self.lapsed, self.unleased = (
            f"({as_sql(which, alias)})" for which in (EXPIRED.condition, LAPSED, UNLEASED)
        )
        self.same_hashes = f"{self.k['key_hash']} = %(key_hash)s AND {self.k['scope_hash']} = %(scope_hash)s"
        # An id alone could be another tenant's, in another schema.
        self.same_row = f"{self.same_hashes} AND {self.k['id']} = %(id)s"
        self.same_attempt = f"{self.same_row} AND {self.k['attempt']} = %(attempt)s"

    def later(self, seconds: str) -> str:
        """The clock plus the parameter of this name."""
        return self.dialect.later.replace("%s", f"%({seconds})s")

    @property
    def new_row(self) -> dict[str, str]:
        """The values of a new row, by the quoted names of their columns."""
        given = ("key_hash", "scope_hash", "scope", "operation", "key", "fingerprint", "policy", "worker")
        values = {
            **{name: f"%({name})s" for name in given},
            "status": f"'{Status.IN_PROGRESS.value}'",
            "attempt": "1",
            "created_at": self.dialect.clock,
            "updated_at": self.dialect.clock,
            "expires_at": self.later("ttl"),
            "locked_until": self.later("lease"),
        }
        return {self.k[name]: value for name, value in values.items()}

    def insert(self, **instead: str) -> str:
        """Insert a new row with VALUES. instead: SQL that takes the place of a parameter."""
        row = {**self.new_row, **{self.k[name]: value for name, value in instead.items()}}
        return f"INSERT INTO {self.table} ({', '.join(row)}) VALUES ({', '.join(row.values())})"

    def stored_key(self, expired: str) -> str:
        """The columns that `as_stored_key` reads. expired: SQL that says whether the row has expired."""
        before = ("id", "scope", "operation", "key", "fingerprint", "status", "attempt")
        judged = (expired, self.lapsed, self.unleased, self.dialect.seconds_until.format(self.k["locked_until"]))
        after = ("status_code", "headers", "body", "resource_type", "resource_id")
        return ", ".join((*(self.k[name] for name in before), *judged, *(self.k[name] for name in after)))

    @cached_property
    def look(self) -> str:
        """Read the row of an identity without locking it."""
        return f"SELECT {self.stored_key(self.expired)} FROM {self.table} WHERE {self.same_hashes}"

    @cached_property
    def seen(self) -> str:
        """Whether the key is stored already."""
        return f"SELECT 1 FROM {self.table} WHERE {self.same_hashes}"

    @cached_property
    def lock(self) -> str:
        """Lock a row if it is at the status and attempt at which it was read. Whether it has expired, or lapsed.

        No time is in the condition: in a small table, the optimizer could choose the index on `expires_at`, and lock
        all of its range.
        """
        return (
            f"SELECT {self.expired}, {self.lapsed} FROM {self.table} "
            f"WHERE {self.same_attempt} AND {self.k['status']} = %(status)s {self.dialect.lock_at_once}"
        )

    @cached_property
    def take_over(self) -> str:
        """Claim a locked row, which has expired, as a new key."""
        k = self.k
        emptied = ("status_code", "headers", "body", "completed_at", "resource_type", "resource_id", "decisions")
        return (
            f"UPDATE {self.table} SET {k['fingerprint']} = %(fingerprint)s, {k['created_at']} = {self.dialect.clock}, "
            f"{''.join(f'{k[name]} = NULL, ' for name in emptied)}{self._next_attempt} WHERE {self.same_row}"
        )

    @cached_property
    def resume(self) -> str:
        """Begin the next attempt of a locked row."""
        return f"UPDATE {self.table} SET {self._next_attempt} WHERE {self.same_row}"

    @property
    def _next_attempt(self) -> str:
        k = self.k
        return (
            f"{k['status']} = '{Status.IN_PROGRESS.value}', {k['attempt']} = {k['attempt']} + 1, "
            f"{k['last_error']} = NULL, {k['updated_at']} = {self.dialect.clock}, {k['policy']} = %(policy)s, "
            f"{k['worker']} = %(worker)s, {k['expires_at']} = {self.later('ttl')}, "
            f"{k['locked_until']} = {self.later('lease')}"
        )

    @property
    def fence(self) -> str:
        """The claimed row still belongs to this attempt. See Note [Fencing]."""
        return f"{self.same_attempt} AND {self.k['status']} = '{Status.IN_PROGRESS.value}'"

    @cached_property
    def own_claim(self) -> str:
        """Whether the claimed row still belongs to this attempt."""
        return f"SELECT 1 FROM {self.table} WHERE {self.fence}"

    @cached_property
    def complete(self) -> str:
        """Store the response of the own claim. What is NULL of `ttl` and of the resource stays as it is stored."""
        k = self.k
        set_response = ", ".join(f"{k[name]} = %({name})s" for name in ("status_code", "headers", "body"))
        set_resource = ", ".join(
            f"{k[name]} = COALESCE(%({name})s, {k[name]})" for name in ("resource_type", "resource_id")
        )
        return (
            f"UPDATE {self.table} SET {k['status']} = '{Status.COMPLETED.value}', {set_response}, {set_resource}, "
            f"{k['completed_at']} = {self.dialect.clock}, {k['updated_at']} = {self.dialect.clock}, "
            f"{k['locked_until']} = NULL, {k['expires_at']} = COALESCE({self.later('ttl')}, {k['expires_at']}) "
            f"WHERE {self.fence}"
        )

    @cached_property
    def release(self) -> str:
        """Delete the row of the own claim."""
        return f"DELETE FROM {self.table} WHERE {self.fence}"

    # --- cleanup

    @cached_property
    def read_expired(self) -> str:
        """Ids and times of expired rows that no other transaction holds, oldest first."""
        id_, expires_at = self.k["id"], self.k["expires_at"]
        return (
            f"SELECT {id_}, {expires_at} FROM {self.table} {self.dialect.by_expiry} WHERE {self.expired} "
            f"AND {expires_at} >= %(not_before)s ORDER BY {expires_at} LIMIT %(limit)s {self.dialect.skip_locked}"
        )

    @cached_property
    def purge(self) -> tuple[str, str]:
        """Delete the steps of these keys, and the keys themselves."""
        delete = self.dialect.delete_by_ids
        return (
            delete.format(table=self.steps, column=self.step_key, still="TRUE"),
            delete.format(table=self.table, column=self.k["id"], still=self.expired),
        )


def as_stored_key(values: Any) -> StoredKey:
    """A row of `Queries.stored_key`. Drivers return bytes and truth values in several types."""
    id_, scope, operation, key, fingerprint, status, attempt, expired, lapsed, unleased, *rest = values
    lease_left, status_code, headers, body, resource_type, resource_id = rest
    if not isinstance(status, str):
        # Bytes: nothing of the row could be compared with the request.
        raise IdempotencyConfigurationError(
            f"the database returns text as {status!r}, not as text. Set client_encoding to UTF8 on this connection."
        )
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
        resource=None if resource_id is None else (resource_type, resource_id),
        unsealed=unseal_response,
    )


def values_of(wanted: ClaimRequest) -> Values:
    """The parameters of a claim, by name."""
    identity = wanted.identity
    return {
        "key_hash": identity.key_hash,
        "scope_hash": identity.scope_hash,
        "scope": identity.scope,
        "operation": identity.operation,
        "key": identity.key,
        "fingerprint": wanted.fingerprint,
        "policy": wanted.policy,
        "ttl": wanted.ttl,
        "lease": wanted.lease,
        "worker": _worker(os.getpid()),
    }


def values_of_claim(claimed: Claimed) -> Values:
    """The parameters of `Queries.fence`, by name."""
    return {
        "key_hash": claimed.key_hash,
        "scope_hash": claimed.scope_hash,
        "id": claimed.id,
        "attempt": claimed.attempt,
    }


@cache
def _worker(pid: int) -> str:
    """Who claims: the host and the process, which a fork changes."""
    return f"{gethostname()[:80]}:{pid}"
