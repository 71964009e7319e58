"""The statements of a claim: from the first look at a key to its result. Each is made once for each store.

All databases share them, and the INSERT of each is in its store. What is rare (a takeover) goes by Django's ORM. All
parameters have names: see `values_of` and `values_of_claim`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache, cached_property
from socket import gethostname
from typing import TYPE_CHECKING, Any

from django.db import connections

from ...exceptions import IdempotencyConfigurationError
from ...models import IdempotencyKey, IdempotencyStep
from ..protocol.decision import Status, StoredKey
from .sealing import unseal_response
from .states import CLOCKS, EXPIRED, LAPSED, UNLEASED, as_sql

if TYPE_CHECKING:
    from ..protocol.outcomes import Claimed, ClaimRequest

Values = dict[str, Any]
SECONDS_UNTIL = {
    "postgresql": "EXTRACT(EPOCH FROM {} - statement_timestamp())",
    "mysql": "TIMESTAMPDIFF(MICROSECOND, UTC_TIMESTAMP(6), {}) / 1000000",
    # SQLite's times have milliseconds. What a float adds to them is rounding.
    "sqlite": "round((julianday({}) - julianday('now')) * 86400, 3)",
}
"""How many seconds are left until the time in a column."""
COLUMNS: dict[str, Callable[[Any], Any]] = {
    "id": int,
    "scope": str,
    "operation": str,
    "key": str,
    "fingerprint": bytes,
    "status": Status,
    "attempt": int,
    "expired": bool,
    "lapsed": bool,
    "unleased": bool,
    "lease_left": float,
    "status_code": int,
    "headers": str,
    "body": bytes,
    "resource_type": str,
    "resource_id": str,
}
"""What a read returns, and the type that each value becomes: drivers return bytes and truth values in several types."""


class Queries:
    """SQL for claiming a key, and for keeping or giving up its claim. `k` are the columns of the keys, quoted."""

    def __init__(self, alias: str) -> None:
        connection = connections[alias]
        quote = connection.ops.quote_name
        self.clock, self._later = CLOCKS[connection.vendor]
        self._seconds_until = SECONDS_UNTIL[connection.vendor]
        self.table, self.steps = quote(IdempotencyKey._meta.db_table), quote(IdempotencyStep._meta.db_table)
        self.k = {field.name: quote(str(field.column)) for field in IdempotencyKey._meta.concrete_fields}
        self.expired, self.lapsed, self.unleased = (
            f"({as_sql(which, alias)})" for which in (EXPIRED.condition, LAPSED, UNLEASED)
        )
        self.same_hashes = f"{self.k['key_hash']} = %(key_hash)s AND {self.k['scope_hash']} = %(scope_hash)s"

    def later(self, seconds: str) -> str:
        """The clock plus the parameter of this name."""
        return self._later.replace("%s", f"%({seconds})s")

    @property
    def new_row(self) -> dict[str, str]:
        """The values of a new row, by the quoted names of their columns."""
        given = ("key_hash", "scope_hash", "scope", "operation", "key", "fingerprint", "policy", "worker")
        values = {
            **{name: f"%({name})s" for name in given},
            "status": f"'{Status.IN_PROGRESS.value}'",
            "attempt": "1",
            "created_at": self.clock,
            "updated_at": self.clock,
            "expires_at": self.later("ttl"),
            "locked_until": self.later("lease"),
        }
        return {self.k[name]: value for name, value in values.items()}

    def insert(self, **instead: str) -> str:
        """Insert a new row with VALUES. instead: SQL that takes the place of a parameter."""
        row = {**self.new_row, **{self.k[name]: value for name, value in instead.items()}}
        return f"INSERT INTO {self.table} ({', '.join(row)}) VALUES ({', '.join(row.values())})"

    def stored_key(self, expired: str) -> str:
        """The values of `COLUMNS`. expired: SQL that says whether the row has expired."""
        judged = {
            "expired": expired,
            "lapsed": self.lapsed,
            "unleased": self.unleased,
            "lease_left": self._seconds_until.format(self.k["locked_until"]),
        }
        return ", ".join(judged.get(name) or self.k[name] for name in COLUMNS)

    @cached_property
    def look(self) -> str:
        """Read the row of an identity without locking it."""
        return f"SELECT {self.stored_key(self.expired)} FROM {self.table} WHERE {self.same_hashes}"

    @cached_property
    def seen(self) -> str:
        """Whether the key is stored already."""
        return f"SELECT 1 FROM {self.table} WHERE {self.same_hashes}"

    @property
    def fence(self) -> str:
        """The claimed row still belongs to this attempt. An id alone could be another tenant's. See Note [Fencing]."""
        k = self.k
        return (
            f"{self.same_hashes} AND {k['id']} = %(id)s AND {k['attempt']} = %(attempt)s "
            f"AND {k['status']} = '{Status.IN_PROGRESS.value}'"
        )

    @cached_property
    def complete(self) -> str:
        """Store the response of the own claim. What is NULL of `ttl` and of the resource stays as it is stored."""
        k = self.k
        response = {name: f"%({name})s" for name in ("status_code", "headers", "body")}
        resource = {name: f"COALESCE(%({name})s, {k[name]})" for name in ("resource_type", "resource_id")}
        values = {
            "status": f"'{Status.COMPLETED.value}'",
            **response,
            **resource,
            "completed_at": self.clock,
            "updated_at": self.clock,
            "locked_until": "NULL",
            "expires_at": f"COALESCE({self.later('ttl')}, {k['expires_at']})",
        }
        changes = ", ".join(f"{k[name]} = {value}" for name, value in values.items())
        return f"UPDATE {self.table} SET {changes} WHERE {self.fence}"

    @cached_property
    def release(self) -> str:
        """Delete the row of the own claim."""
        return f"DELETE FROM {self.table} WHERE {self.fence}"


def as_stored_key(values: Any) -> StoredKey:
    """A row of `Queries.stored_key`."""
    row = dict(zip(COLUMNS, values, strict=True))
    if not isinstance(row["status"], str):
        # Bytes: nothing of the row could be compared with the request.
        raise IdempotencyConfigurationError(
            f"the database returns text as {row['status']!r}, not as text. Set client_encoding to UTF8 on this "
            "connection."
        )
    for name, kind in COLUMNS.items():
        row[name] = None if row[name] is None else kind(row[name])
    row["lease_left"] = row["lease_left"] or 0.0
    type_, id_ = row.pop("resource_type"), row.pop("resource_id")
    return StoredKey(**row, resource=None if id_ is None else (type_, id_), response=unseal_response)


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
    """The parameters of `complete` and `release` that find the claimed row, by name."""
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
