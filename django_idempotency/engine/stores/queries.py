"""The SQL that finds and claims a key, and completes or releases the claim.

Most statements are built once, when they are first used. Databases differ in their INSERT syntax and in how they
compute times. Less common actions, such as a takeover, go through Django's ORM. Parameters are named: `values_of` and
`values_of_claim` return their values.
"""

from __future__ import annotations

import os
from functools import cache, cached_property
from socket import gethostname
from typing import TYPE_CHECKING, Any

from django.db import connections

from ...exceptions import IdempotencyConfigurationError
from ...models import IdempotencyKey, IdempotencyStep
from ..protocol.stored_key import Status, StoredKey
from .sealing import unseal_response
from .states import CLOCKS, EXPIRED, LAPSED, UNLEASED, as_sql

if TYPE_CHECKING:
    from ..protocol.outcomes import Claimed, ClaimRequest

Values = dict[str, Any]
SECONDS_SINCE_1970 = {
    "postgresql": "EXTRACT(EPOCH FROM statement_timestamp())",
    "mysql": "UNIX_TIMESTAMP()",
    "sqlite": "strftime('%%s', 'now')",
}
"""The current time. Whole seconds are exact enough for a key's age."""
SECONDS_UNTIL = {
    "postgresql": "EXTRACT(EPOCH FROM {} - statement_timestamp())",
    "mysql": "TIMESTAMPDIFF(MICROSECOND, UTC_TIMESTAMP(6), {}) / 1000000",
    # SQLite keeps milliseconds, and any further digits of the float would be wrong.
    "sqlite": "round((julianday({}) - julianday('now')) * 86400, 3)",
}
"""The seconds left until the time in a column."""
COLUMNS = (
    *("id", "scope", "operation", "key", "fingerprint", "status", "attempt"),
    *("expired", "lapsed", "unleased", "lease_left"),
    *("status_code", "headers", "resource_type", "resource_id", "body"),
)
"""What a query reads from a row. The body comes last, because it can't be part of the JSON that PostgreSQL returns."""
STATUSES = {status.value: status for status in Status}


class Queries:
    """The statements for one alias. `k` maps each column of the key table to its quoted name."""

    def __init__(self, alias: str) -> None:
        connection = connections[alias]
        quote = connection.ops.quote_name
        self.clock, self._later = CLOCKS[connection.vendor]
        self._seconds_until = SECONDS_UNTIL[connection.vendor]
        self.seconds_since_1970 = SECONDS_SINCE_1970[connection.vendor]
        self.table, self.steps = quote(IdempotencyKey._meta.db_table), quote(IdempotencyStep._meta.db_table)
        self.step_key = quote(str(IdempotencyStep._meta.get_field("key").column))
        self.k = {field.name: quote(str(field.column)) for field in IdempotencyKey._meta.concrete_fields}
        self.expired, self.lapsed, self.unleased = (
            f"({as_sql(which, alias)})" for which in (EXPIRED.condition, LAPSED, UNLEASED)
        )
        self.same_hashes = f"{self.k['key_hash']} = %(key_hash)s AND {self.k['scope_hash']} = %(scope_hash)s"

    def later(self, seconds: str) -> str:
        """Return SQL for the database's time plus a number of seconds. `seconds` names the parameter that holds it."""
        return self._later.replace("%s", f"%({seconds})s")

    @property
    def new_row(self) -> dict[str, str]:
        """A new row's quoted columns, and the SQL for their values."""
        given = ("key_hash", "scope_hash", "scope", "operation", "key", "fingerprint", "policy", "worker")
        values = {
            **{name: f"%({name})s" for name in given},
            "status": f"'{Status.IN_PROGRESS.value}'",
            "attempt": "1",
            "unknown": "0",
            "effects": "0",
            "created_at": self.clock,
            "updated_at": self.clock,
            "expires_at": self.later("ttl"),
            "locked_until": self.later("lease"),
        }
        return {self.k[name]: value for name, value in values.items()}

    def insert(self, **instead: str) -> str:
        """INSERT a new row. Each keyword argument replaces a column's SQL."""
        row = {**self.new_row, **{self.k[name]: value for name, value in instead.items()}}
        return f"INSERT INTO {self.table} ({', '.join(row)}) VALUES ({', '.join(row.values())})"

    @cached_property
    def insert_if_new(self) -> str:
        """INSERT a new row, unless the key is already stored."""
        return f"{self.insert()} ON CONFLICT ({self.k['key_hash']}, {self.k['scope_hash']}) DO NOTHING"

    def stored_key(self, expired: str) -> dict[str, str]:
        """Return the SQL for each of `COLUMNS`. `expired` is the condition under which a row has expired."""
        judged = {
            "expired": expired,
            "lapsed": self.lapsed,
            "unleased": self.unleased,
            "lease_left": self._seconds_until.format(self.k["locked_until"]),
        }
        return {name: judged.get(name) or self.k[name] for name in COLUMNS}

    @cached_property
    def look(self) -> str:
        """SELECT one key by its hashes, without locking it."""
        return f"SELECT {', '.join(self.stored_key(self.expired).values())} FROM {self.table} WHERE {self.same_hashes}"

    @cached_property
    def seen(self) -> str:
        """SELECT 1 if the key is stored."""
        return f"SELECT 1 FROM {self.table} WHERE {self.same_hashes}"

    @property
    def fence(self) -> str:
        """The condition that the claimed row still belongs to this attempt. See Note [Fencing].

        The hashes are part of it, because another tenant may have a row with the same id.
        """
        k = self.k
        return (
            f"{self.same_hashes} AND {k['id']} = %(id)s AND {k['attempt']} = %(attempt)s "
            f"AND {k['status']} = '{Status.IN_PROGRESS.value}'"
        )

    @cached_property
    def complete(self) -> str:
        """UPDATE the claimed row with the response. If the resource is NULL, the stored one is kept."""
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
        }
        changes = ", ".join(f"{k[name]} = {value}" for name, value in values.items())
        return f"UPDATE {self.table} SET {changes} WHERE {self.fence}"

    @cached_property
    def complete_for(self) -> str:
        """Do the same as `complete`, but with a new expiry time for the response.

        This is a separate statement, because a single one would need a time function inside COALESCE, which Citus
        doesn't allow.
        """
        return self.complete.replace(" SET ", f" SET {self.k['expires_at']} = {self.later('ttl')}, ", 1)

    @cached_property
    def complete_settled(self) -> str:
        """Do the same as `complete_for`, but only if all of the key's calls and writes have results."""
        return f"{self.complete_for} AND {self.k['unknown']} = 0"

    @cached_property
    def release(self) -> str:
        """DELETE the claimed row."""
        return f"DELETE FROM {self.table} WHERE {self.fence}"


def as_stored_key(values: Any) -> StoredKey:
    """Convert a row that was read with the SQL of `Queries.stored_key`."""
    id_, scope, operation, key, fingerprint, status, attempt, *others = values
    expired, lapsed, unleased, lease_left, status_code, headers, type_, of, body = others
    if not isinstance(status, str):
        # The row can be compared with the request only if the driver returns text as a `str`.
        raise IdempotencyConfigurationError(
            f"the database returns text as {status!r}, not as a str. Set client_encoding to UTF8 on this connection."
        )
    return StoredKey(
        id=id_,
        scope=scope,
        operation=operation,
        key=key,
        fingerprint=_bytes(fingerprint),
        status=STATUSES[status],
        attempt=attempt,
        # Some drivers return truth values as numbers.
        expired=bool(expired),
        lapsed=bool(lapsed),
        unleased=bool(unleased),
        lease_left=float(lease_left or 0),
        status_code=status_code,
        headers=headers,
        body=_bytes(body),
        resource=None if of is None else (type_, of),
        response=unseal_response,
    )


def _bytes(value: Any) -> bytes | None:
    """Return a stored value as bytes. Drivers return bytes or a memoryview, and JSON contains hexadecimal digits."""
    if value is None:
        return None
    return bytes.fromhex(value) if isinstance(value, str) else bytes(value)


def values_of(request: ClaimRequest) -> Values:
    """The SQL parameters for a claim."""
    identity = request.identity
    return {
        "key_hash": identity.key_hash,
        "scope_hash": identity.scope_hash,
        "scope": identity.scope,
        "operation": identity.operation,
        "key": identity.key,
        "fingerprint": request.fingerprint,
        "policy": request.policy,
        "ttl": request.ttl,
        "lease": request.lease,
        "worker": _worker(os.getpid()),
    }


def values_of_claim(claimed: Claimed) -> Values:
    """The SQL parameters for `Queries.fence`."""
    return {
        "key_hash": claimed.key_hash,
        "scope_hash": claimed.scope_hash,
        "id": claimed.id,
        "attempt": claimed.attempt,
    }


@cache
def _worker(pid: int) -> str:
    """Return the host and the process id. The id is an argument, because a forked process inherits the cache."""
    return f"{gethostname()[:80]}:{pid}"
